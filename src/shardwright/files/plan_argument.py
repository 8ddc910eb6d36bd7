"""Reader of a command line's plan argument: a plan file, the general notation, or a grid's text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.errors import StrategyError, UsageError
from shardwright.files.canonical_json import read_text
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.files.read_plan_and_simulation_files import parse_saved
from shardwright.files.rewrite_request_paths_relative_to_folder import is_same_model
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.model_graph import Model
from shardwright.model.requested_model_with_teacher import requested_model
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.translate_phrases_to_grid_notation import translate_phrases

_SUFFIXES: Final = (".plan", ".json", ".txt")
_HINT: Final = "a .plan text, or what `shardwright plan -o` wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A general plan, its name, its model, and the request of its file where there is one."""

    name: str
    plan: Plan
    model: Model
    request: Request | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStrategy:
    """A strategy of the command line, a grid or a plan, and its name.

    Args:
        read_as: the notation that was read from other words.
        assumed: the word that the text left out and the training framework decides.
    """

    name: str
    strategy: Grid | Plan
    read_as: str = ""
    assumed: str = ""


def read_strategy(
    source: str,
    *,
    model: Model,
    model_name: str,
    devices: int = 0,
    schedules: Sequence[str] = (),
) -> NamedStrategy:
    """Read the strategy of a command-line argument: grid text, notation, or the path of a file.

    Args:
        source: a grid's text; a text in the general notation; or the path of one, or of a file of
            `plan -o` or `simulate -o`.
        model, model_name: the model of the strategy.
        devices: devices of a grid that has no dp; 0 = not known.
        schedules: schedules of the training framework, of which a grid that names none has the
            default; empty = any.

    Raises:
        DataError: the file cannot be read. StrategyError: it has no strategy, or a stored plan is
            for another model (``plan.model``).
    """
    text, name = source, ""
    if names_file(source):
        text, name = read_text(Path(source), what="plan", hint=_HINT), source
    if text.lstrip().startswith("{"):
        saved = parse_saved(
            text, name=name or "the plan", folder=Path(name).parent if name else None
        )
        return _saved_strategy(saved, name=name or "the plan", model_name=model_name)
    if not name and not _is_notation(source):
        reading = translate_phrases(source, of=None)
        grid = parse_grid(reading.text, devices=devices, schedules=schedules)
        usual = parse_grid(reading.text, devices=devices).schedule
        return NamedStrategy(
            name=source,
            strategy=grid,
            read_as=reading.read_as,
            assumed=f"schedule={grid.schedule}" if grid.schedule != usual else "",
        )
    return NamedStrategy(name=_notation_name(text), strategy=parse_plan(text, model=model))


def names_file(source: str) -> bool:
    """True if `read_strategy` would read the file that a text names."""
    return not _is_notation(source) and _is_path(source)


def is_grid_text(source: str) -> bool:
    """True if a text is a grid's words: no path, no notation and no JSON."""
    return not _is_notation(source) and not _is_path(source)


def _is_notation(source: str) -> bool:
    """True if a text has several lines, or starts as the general notation or JSON does."""
    return "\n" in source.strip() or source.lstrip().startswith(("plan ", "{"))


def _saved_strategy(saved: StoredSimulation, *, name: str, model_name: str) -> NamedStrategy:
    """Grid, else plan, of a stored file; StrategyError if the plan is for another model."""
    name = name if isinstance(saved, StoredPlan) and saved.grid is not None else saved.name
    if saved.grid is not None:
        return NamedStrategy(name=name, strategy=saved.grid)
    assert saved.plan is not None
    if not is_same_model(saved.request.model, model_name):
        raise StrategyError(
            f"the plan is for {saved.request.model[:60]}, not {model_name[:60]}",
            hint="a plan names blocks of its model; a grid suits any",
            rule="plan.model",
        )
    return NamedStrategy(name=name, strategy=saved.plan)


def _notation_name(text: str) -> str:
    """Name in the first line of a notation; empty if it has none."""
    lines = (line.partition("#")[0].split() for line in text.split("\n"))
    words = next((words for words in lines if words), [])
    return words[1] if len(words) > 1 and words[0] == "plan" else ""


def read_plan(
    source: str, *, model: str = "", devices: int = 0, global_batch: int = 0
) -> NamedPlan:
    """Read a general plan from a path or notation, or lower a grid's text to a plan.

    Args:
        model: catalog name or path; a plan file has its own, which is used when this is empty.
        devices: of a grid; dp, unless the grid has one, is the quotient of the devices by its other
            degrees. 0 = the product of its degrees.
        global_batch: of a grid, in samples. 0 = one microbatch for each pipeline rank.

    Raises:
        DataError: the file cannot be read. StrategyError: it has no plan, or none for these
            devices. ModelError: the model is unknown. UsageError: a notation or a grid without a
            model.
    """
    path = Path(source)
    if _is_path(source):
        text = read_text(path, what="plan", hint=_HINT)
        if text.lstrip().startswith("{"):
            return _plan_from_document(text, path=path, model=model)
        if devices or global_batch:
            raise UsageError(
                "--devices and --global-batch are for grids; a plan says its own",
                hint="leave them out",
            )
        chosen = _required_model(model)
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
    chosen = _required_model(model)
    batch = global_batch or grid.dp * grid.microbatch * grid.pp
    return NamedPlan(
        name=source, plan=plan_of(grid, model=chosen, global_batch=batch), model=chosen
    )


def _is_path(source: str) -> bool:
    """True if the text ends as a plan file does, has a path separator, or names a file."""
    try:
        return source.endswith(_SUFFIXES) or os.sep in source or Path(source).exists()
    except (OSError, ValueError):
        return False


def _plan_from_document(text: str, *, path: Path, model: str) -> NamedPlan:
    """Plan of a stored file's JSON text, for the given model or the file's own."""
    saved = parse_saved(text, name=str(path), folder=path.parent)
    asked, plan = saved.request, saved.plan
    chosen = requested_model(model or asked.model, train=asked.train, teacher=asked.teacher)
    if plan is None:
        assert saved.grid is not None
        plan = plan_of(saved.grid, model=chosen, global_batch=saved.request.global_batch)
    same = not model or is_same_model(model, saved.request.model)
    return NamedPlan(
        name=path.stem, plan=plan, model=chosen, request=saved.request if same else None
    )


def _required_model(name: str) -> Model:
    """Load the model; UsageError where its name is empty."""
    if not name:
        raise UsageError(
            "a plan in notation needs the model it is for", hint="shardwright draw PLAN MODEL"
        )
    return load_model(name)
