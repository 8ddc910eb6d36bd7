"""Plans from the command line: a plan file, the general notation, or a grid's text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from shardwright.errors import StrategyError, UsageError
from shardwright.files.document_text import read_text
from shardwright.files.plan_file import parse_saved
from shardwright.files.relative_paths import is_same
from shardwright.files.stored_documents import StoredPlan, StoredSimulation
from shardwright.lazy_dataclass import dataclass
from shardwright.model.catalog.models_by_name import load_model
from shardwright.model.ir.model_graph import Model
from shardwright.model.requested_model import asked_model
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.strategy_words import translate_phrases

_SUFFIXES: Final = (".plan", ".json", ".txt")
_HINT: Final = "a .plan text, or what `shardwright plan -o` wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan, its name and the model it is for; what it was asked for, where a file says so."""

    name: str
    plan: Plan
    model: Model
    request: Request | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStrategy:
    """A strategy as it was given, a grid or a plan, and its name; how words that are not of the
    notation were read.
    """

    name: str
    strategy: Grid | Plan
    read_as: str = ""


def read_strategy(source: str, *, model: Model, model_name: str, devices: int = 0) -> NamedStrategy:
    """The strategy that `source` is or names.

    Args:
        source: a grid's text; a text in the general notation; or the path of one, or of what `plan
            -o` or `simulate -o` wrote.
        model, model_name: the model that it is to be for.
        devices: what a grid that does not say dp is to use; 0 = not known.

    Raises:
        DataError: the file cannot be read. StrategyError: it says no strategy, or a stored plan is
        for another model (``plan.model``).
    """
    text, name = source, ""
    if not _is_text(source) and _is_path(source):
        text, name = read_text(Path(source), what="plan", hint=_HINT), source
    if text.lstrip().startswith("{"):
        saved = parse_saved(
            text, name=name or "the plan", folder=Path(name).parent if name else None
        )
        return _saved_strategy(saved, name=name or "the plan", model_name=model_name)
    if not name and not _is_text(source):
        reading = translate_phrases(source, of=None)
        return NamedStrategy(
            name=source, strategy=parse_grid(reading.text, devices=devices), read_as=reading.read_as
        )
    return NamedStrategy(name=_notation_name(text), strategy=parse_plan(text, model=model))


def is_grid_text(source: str) -> bool:
    """A grid's words, not a path, a notation or a file's JSON."""
    return not _is_text(source) and not _is_path(source)


def _is_text(source: str) -> bool:
    """The notation itself, or a file's JSON, not a path or a grid."""
    return "\n" in source.strip() or source.lstrip().startswith(("plan ", "{"))


def _saved_strategy(saved: StoredSimulation, *, name: str, model_name: str) -> NamedStrategy:
    name = name if isinstance(saved, StoredPlan) and saved.grid is not None else saved.name
    if saved.grid is not None:
        return NamedStrategy(name=name, strategy=saved.grid)
    assert saved.plan is not None
    if not is_same(saved.request.model, model_name):
        raise StrategyError(
            f"the plan is for {saved.request.model[:60]}, not {model_name[:60]}",
            hint="a plan names blocks of its model; a grid suits any",
            rule="plan.model",
        )
    return NamedStrategy(name=name, strategy=saved.plan)


def _notation_name(text: str) -> str:
    """The name in the first line of a notation, empty if it has none."""
    lines = (line.partition("#")[0].split() for line in text.split("\n"))
    words = next((words for words in lines if words), [])
    return words[1] if len(words) > 1 and words[0] == "plan" else ""


def read_plan(
    source: str, *, model: str = "", devices: int = 0, global_batch: int = 0
) -> NamedPlan:
    """The plan at the path `source`, or the one that the grid `source` says.

    Args:
        model: catalog name or path; a plan file names its own, which is used when this is empty.
        devices: of a grid; dp, unless it says one, is what its other degrees leave over. 0 = the
            product of its degrees.
        global_batch: of a grid, in samples. 0 = one microbatch for each pipeline rank.

    Raises:
        DataError: the file cannot be read. StrategyError: it says no plan, or not one for these
        devices. ModelError: the model is unknown. UsageError: a notation or a grid without a model.
    """
    path = Path(source)
    if _is_path(source):
        text = read_text(path, what="plan", hint=_HINT)
        if text.lstrip().startswith("{"):
            return _from_file(text, path=path, model=model)
        if devices or global_batch:
            raise UsageError(
                "--devices and --global-batch are for grids; a plan says its own",
                hint="leave them out",
            )
        chosen = _model(model)
        return NamedPlan(
            name=_notation_name(text) or path.stem,
            plan=parse_plan(text, model=chosen),
            model=chosen,
        )
    grid = parse_grid(source, devices=devices)
    if devices and grid.devices != devices:
        raise StrategyError(
            f"the grid has {grid.devices} devices, --devices says {devices}",
            hint="leave out dp: it takes the rest",
            rule="grid.devices",
        )
    chosen = _model(model)
    batch = global_batch or grid.dp * grid.microbatch * grid.pp
    return NamedPlan(
        name=source, plan=plan_of(grid, model=chosen, global_batch=batch), model=chosen
    )


def _is_path(source: str) -> bool:
    """A grid's words hold no separators and no such endings."""
    try:
        return source.endswith(_SUFFIXES) or os.sep in source or Path(source).exists()
    except (OSError, ValueError):
        return False


def _from_file(text: str, *, path: Path, model: str) -> NamedPlan:
    saved = parse_saved(text, name=str(path), folder=path.parent)
    asked, plan = saved.request, saved.plan
    chosen = asked_model(model or asked.model, train=asked.train, teacher=asked.teacher)
    if plan is None:
        assert saved.grid is not None
        plan = plan_of(saved.grid, model=chosen, global_batch=saved.request.global_batch)
    same = not model or is_same(model, saved.request.model)
    return NamedPlan(
        name=path.stem, plan=plan, model=chosen, request=saved.request if same else None
    )


def _model(name: str) -> Model:
    if not name:
        raise UsageError(
            "a plan in notation needs the model it is for", hint="shardwright draw PLAN MODEL"
        )
    return load_model(name)
