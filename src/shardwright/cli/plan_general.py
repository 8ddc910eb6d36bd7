"""``shardwright plan --space joint`` and ``--space exact``, on mixed clusters and for several
scenarios: the best general plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rich.console import Group

from shardwright.api.exact import plan_exact
from shardwright.api.general import GeneralAnswer, stored_general
from shardwright.api.joint import plan_joint, unsearched_of_joint
from shardwright.api.mixed import plan_mixed, unsearched_of_mixed
from shardwright.api.problems import Method, problem_of
from shardwright.api.robust import plan_robust
from shardwright.cli import interrupt, screen, verdict
from shardwright.cli.beside import Beside
from shardwright.cli.flags import AnswerForm
from shardwright.cli.frameworks import frameworks_of
from shardwright.errors import UsageError
from shardwright.files.faces import filed
from shardwright.files.stored import document_of, file_text
from shardwright.report.screens.joint_search_screen import render_general
from shardwright.search.answer import Unsearched
from shardwright.search.engine.protocol import Engine
from shardwright.search.joint.find import JointAnswer
from shardwright.search.limit import STOP
from shardwright.search.mixed.find_fastest import MixedAnswer
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation

SEARCHES: Final[Mapping[Method, Callable[..., GeneralAnswer]]] = {
    Method.JOINT: plan_joint,
    Method.EXACT: plan_exact,
    Method.MIXED: plan_mixed,
    Method.ROBUST: plan_robust,
}


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
    if method is Method.ROBUST and isfinite(time_limit):
        raise UsageError("a search over scenarios ends by itself", hint="drop --time-limit")
    # The best plan so far of several searches together cannot be recomputed: they are not stopped.
    stopping = nullcontext() if method is Method.ROBUST else interrupt.stopping()
    with stopping, screen.progress(form) as report:
        settings: dict[str, Any] = {} if method is Method.EXACT else {"engine": engine}
        settings |= {} if method is Method.ROBUST else {"time_limit_s": time_limit}
        answer = SEARCHES[method](request, progress=report, **settings)
    interrupt.note(waited=answer.waited)
    stored = stored_general(answer)
    is_line = form.quiet and not form.as_json
    unsearched = None if is_line or STOP.is_set() else _unsearched(answer)
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = frameworks_of(stored) + (Beside() if cost is None else cost(stored.simulation))
    searched = {} if unsearched is None else {"unsearched": filed(unsearched, names={})}
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
                left=unsearched,
            ),
            *beside.sections,
        ),
    )
    return interrupt.code() or verdict.exit_code(stored.prediction)


def _unsearched(answer: GeneralAnswer) -> Unsearched | None:
    """The options that a search of a joint or mixed space left at one value; None for other
    searches.
    """
    if isinstance(answer, JointAnswer):
        return unsearched_of_joint(answer)
    return unsearched_of_mixed(answer) if isinstance(answer, MixedAnswer) else None
