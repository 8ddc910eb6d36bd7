"""Tiny model for a serving proof: the same blocks and cuts, smaller widths, windows and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.execute.proof.model_with_divided_widths import narrower_model, narrowest_model
from shardwright.execute.proof.short_windows import ShortReach, with_short_windows
from shardwright.execute.serve.remove_prediction_modules_and_check_model import (
    require_served,
    served_model,
)
from shardwright.model.ir.model_graph import Model, Run
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan


def tiny_workers(model: Model, grids: Sequence[Grid]) -> tuple[Model, tuple[Plan, ...]]:
    """(small model, its plan for each grid), with widths that all grids still divide.

    Widths are as small as all the grids' cuts allow; heads, experts and kinds of layers are
    unchanged.

    Raises:
        StrategyError: the model is not served (``serve.model``), or a grid does not fit it.
    """
    shallow = short_windows_model(
        few_layers(served_model(model), least=max(grid.pp for grid in grids))
    )
    require_served(shallow)
    narrowest = [
        narrowest_model(plan_of(grid, model=shallow, global_batch=grid.dp), model=shallow)
        for grid in grids
    ]
    small = narrower_model(
        shallow,
        most=min(shallow.hidden // narrow.hidden for narrow in narrowest),
        vocab=max(narrow.vocab for narrow in narrowest),
    )
    return small, tuple(plan_of(grid, model=small, global_batch=grid.dp) for grid in grids)


def few_layers(model: Model, *, least: int) -> Model:
    """Model with one run of each block, chained, and layers repeated to at least `least` in all."""
    firsts = {run.block: run for run in reversed(model.runs)}
    first_runs = [run for run in model.runs if firsts[run.block] is run]
    layers = [run for run in first_runs if model.blocks[run.block].is_layer]
    repeats = -(-least // len(layers)) if layers else 1
    runs: list[Run] = []
    for run in first_runs:
        count = repeats if run in layers else 1
        runs.append(
            replace(run, count=count, inputs=(runs[-1].name,) if runs and run.inputs else ())
        )
    return replace(model, runs=tuple(runs))


WINDOW, CHUNK = 5, 3
"""Keys of a window, and tokens of a scan's chunk: short texts are longer than both."""


def short_windows_model(model: Model) -> Model:
    """The model with windows of at most 5 keys and scan chunks of at most 3 tokens."""
    return with_short_windows(
        model, {block.sequence: ShortReach(window=WINDOW, chunk=CHUNK) for block in model.blocks}
    )
