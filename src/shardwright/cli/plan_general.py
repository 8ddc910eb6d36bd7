"""``shardwright plan --space joint`` and ``--space exact``, on mixed clusters and for several
scenarios: the best general plan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import isfinite
from pathlib import Path

from rich.console import Group

from shardwright.api.general import SEARCHES, stored_general
from shardwright.api.problems import Method, problem_of
from shardwright.cli import interrupt, screen, verdict
from shardwright.cli.beside import Beside
from shardwright.cli.flags import AnswerForm
from shardwright.cli.frameworks import frameworks_of
from shardwright.errors import UsageError
from shardwright.files.faces import filed
from shardwright.files.stored import document_of, file_text
from shardwright.report.screens.joint_search_screen import render_general
from shardwright.search.engine.protocol import Engine
from shardwright.search.limit import STOP
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation


def plan(
    request: Request,
    method: Method,
    *,
    time_limit: float,
    engine: Engine,
    cost: Callable[[Simulation], Beside] | None,
    output: Path | None,
    form: AnswerForm,
) -> int:
    """Search the space of general plans that the request names and print the answer; returns the
    exit code.
    """
    search = SEARCHES[method]
    if method is Method.ROBUST and isfinite(time_limit):
        raise UsageError("a search over scenarios ends by itself", hint="drop --time-limit")
    # The searches of several scenarios cannot be repeated up to where they were stopped.
    stopping = nullcontext() if method is Method.ROBUST else interrupt.stopping()
    with stopping, screen.progress(form) as report:
        answer = search.answer(request, progress=report, engine=engine, time_limit_s=time_limit)
    interrupt.note(waited=answer.waited)
    stored = stored_general(answer)
    is_line = form.quiet and not form.as_json
    is_shown = not is_line and not STOP.is_set()
    left = search.unsearched(answer) if search.unsearched is not None and is_shown else None
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = frameworks_of(stored) + (Beside() if cost is None else cost(stored.simulation))
    searched = {} if left is None else {"unsearched": filed(left, names={})}
    screen.print_answer(
        form,
        document=lambda: {
            **document_of(stored),
            "search_time_s": answer.search_time_s,
            **searched,
            **beside.document,
        },
        line=lambda: verdict.simulation_line(stored.simulation),
        picture=lambda: Group(
            render_general(
                stored.simulation,
                stored.certificate,
                model=problem_of(request).model,
                search_time_s=answer.search_time_s,
                left=left,
            ),
            *beside.sections,
        ),
    )
    return interrupt.code() or verdict.exit_code(stored.prediction)
