"""What a plan can be drawn from: a plan file, the general notation, or a grid's text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError, StrategyError, UsageError
from shardwright.model.catalog import load_model
from shardwright.model.graph import Model
from shardwright.report.plan_file import MAX_FILE_BYTES, parse_plan_file
from shardwright.strategy.grid_notation import parse_grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.parser import parse_plan
from shardwright.strategy.plan import Plan

_SUFFIXES: Final = (".plan", ".json", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan, its name and the model it is for."""

    name: str
    plan: Plan
    model: Model


def read_plan(source: str, *, model: str = "", devices: int = 0, global_batch: int = 0) -> NamedPlan:
    """The plan at the path `source`, or the one that the grid `source` says.

    Args:
        model: catalog name or path; a plan file names its own, which is used when this is empty.
        devices: of a grid; what its degrees leave over is data parallel. 0 = the product of its degrees.
        global_batch: of a grid, in samples. 0 = one microbatch for each pipeline rank.

    Raises:
        DataError: the file cannot be read. StrategyError: it says no plan, or not one for these devices.
        ModelError: the model is unknown. UsageError: a notation or a grid without a model.
    """
    path = Path(source)
    if _is_path(source):
        text = _read(path)
        if text.lstrip().startswith("{"):
            return _from_file(text, path=path, model=model)
        if devices or global_batch:
            raise UsageError("--devices and --global-batch are for grids; a plan says its own", hint="leave them out")
        chosen = _model(model)
        words = text.split(maxsplit=2)
        return NamedPlan(name=words[1] if len(words) > 1 else path.stem, plan=parse_plan(text, model=chosen), model=chosen)
    grid = parse_grid(source)
    if devices and grid.devices != devices:
        if grid.dp > 1 or devices % grid.devices:
            raise StrategyError(
                f"the grid has {grid.devices} devices, --devices says {devices}",
                hint="leave out dp: it takes the rest",
                rule="grid.devices",
            )
        grid = replace(grid, dp=devices // grid.devices)
    chosen = _model(model)
    batch = global_batch or grid.dp * grid.microbatch * grid.pp
    return NamedPlan(name=source, plan=plan_of(grid, model=chosen, global_batch=batch), model=chosen)


def _is_path(source: str) -> bool:
    """A grid's words hold no separators and no such endings."""
    try:
        return source.endswith(_SUFFIXES) or os.sep in source or Path(source).exists()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="is it a plan?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read plan {path}: {error.strerror}", hint="a .plan text, or what `shardwright plan -o` wrote") from error
    except ValueError as error:
        raise DataError(f"cannot read plan {path}: it is not text", hint="a .plan text, or what `shardwright plan -o` wrote") from error


def _from_file(text: str, *, path: Path, model: str) -> NamedPlan:
    request, answer = parse_plan_file(text, name=str(path))
    chosen = load_model(model or request.model)
    plan = answer.plan or plan_of(answer.grid, model=chosen, global_batch=request.global_batch)
    return NamedPlan(name=path.stem, plan=plan, model=chosen)


def _model(name: str) -> Model:
    if not name:
        raise UsageError("a plan in notation needs the model it is for", hint="shardwright draw PLAN MODEL")
    return load_model(name)
