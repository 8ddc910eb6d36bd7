"""``shardwright plan`` for general plans: joint, exact, mixed clusters and scenarios."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.api.request_to_problem import SearchMethod
from shardwright.api.table_of_general_plan_searches import SEARCHES
from shardwright.cli.parsing.shared_options import AnswerForm
from shardwright.cli.terminal import keyboard_interrupt
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_request import Request

if TYPE_CHECKING:
    from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
    from shardwright.search.simulated_strategy import Simulation


def plan(
    request: Request,
    method: SearchMethod,
    *,
    time_limit: float,
    engine: Engine,
    cost: Callable[[Simulation], ExtraAnswers] | None,
    output: Path | None,
    form: AnswerForm,
) -> int:
    """Search the requested space of general plans and print the answer; returns the exit code."""
    search = SEARCHES[method]
    if method is SearchMethod.ROBUST and isfinite(time_limit):
        raise UsageError("a search over scenarios ends by itself", hint="drop --time-limit")
    # The searches of several scenarios cannot be repeated up to where they were stopped.
    stopping = (
        nullcontext()
        if method is SearchMethod.ROBUST
        else keyboard_interrupt.stop_search_on_interrupt()
    )
    with stopping, screen.progress(form) as report:
        answer = search.answer(request, progress=report, engine=engine, time_limit_s=time_limit)
    keyboard_interrupt.note_late_plan(waited=answer.waited)
    # The modules that print an answer are imported after the search, whose first plan they would
    # delay.
    code: int = import_module("shardwright.cli.print_general_search_answer").print_general(
        request, answer, search, cost=cost, output=output, form=form
    )
    return code
