"""Stored simulations: what `simulate -o` writes, read again, strictly; and whichever of the two files a path holds."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import DataError
from shardwright.report.fields import Fields, shown
from shardwright.report.json_face import SIMULATION_SCHEMA, VERSION, question_digest
from shardwright.report.plan_file import decoded, parse_plan_file, prediction_of, read_text, request_of
from shardwright.search.answer import Answer
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid_notation import parse_grid
from shardwright.strategy.plan_json import plan_from_json

Saved = tuple[Request, Answer] | Simulation
"""What a plan file holds: the answer of a search, or one simulated strategy."""

_HINT = "write the file again with `shardwright simulate ... -o FILE`"


def read_saved(path: Path) -> Saved:
    """What `shardwright plan -o` or `shardwright simulate -o` wrote at `path`.

    Raises:
        DataError: it cannot be read, is neither, is of a later version, or was edited (a simulation's digest).
        StrategyError: its strategy cannot be read.
    """
    return parse_saved(read_text(path), name=str(path))


def parse_saved(text: str, *, name: str = "plan file") -> Saved:
    """The same of a text; `name` is for messages."""
    document = decoded(text, name=name)
    if not isinstance(document, dict) or document.get("schema") != SIMULATION_SCHEMA:
        return parse_plan_file(text, name=name)
    if document.get("version") != VERSION:
        raise DataError(f"{name}: version {shown(document.get('version'))} is not {VERSION}", hint="use the release that wrote it")
    top = Fields(document, path=name, hint=_HINT)
    plan, strategy = top.value("plan"), top.value("strategy")
    if plan is None and strategy is None:
        raise DataError(f"{name}: it has neither a strategy nor a plan", hint=_HINT)
    request = request_of(top.section("problem"))
    question = {"problem": top.value("problem"), "strategy": strategy, "plan": plan}
    if top.text("digest") != question_digest(question):
        raise DataError(f"{name}: problem, strategy or plan are not those that its digest is of", hint=_HINT)
    return Simulation(
        request=request,
        name=top.text("name"),
        grid=parse_grid(top.text("strategy")) if strategy is not None else None,
        plan=plan_from_json(plan) if plan is not None else None,
        prediction=prediction_of(top),
        classes=top.texts("classes"),
        notes=top.texts("notes"),
    )
