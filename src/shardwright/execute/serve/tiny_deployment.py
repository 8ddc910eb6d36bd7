"""A model that is served in seconds: the same blocks and cuts, widths divided, each kind of layer
once, windows and chunks short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.execute.proof.narrower_model import shrink, shrink_for
from shardwright.execute.proof.short_windows import ShortReach, short_reach
from shardwright.execute.serve.served_model import require_served, served_model
from shardwright.model.ir.model_graph import Model, Run
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.plan import Plan


def tiny_workers(model: Model, grids: Sequence[Grid]) -> tuple[Model, tuple[Plan, ...]]:
    """(a small model, the plan of each of `grids` for it): widths as small as all their cuts allow,
    heads, experts and kinds of layers as they are.

    Raises:
        StrategyError: the model is not served (``serve.model``), or a grid does not fit it.
    """
    few = short(few_layers(served_model(model), least=max(grid.pp for grid in grids)))
    require_served(few)
    fitting = [
        shrink_for(plan_of(grid, model=few, global_batch=grid.dp), model=few) for grid in grids
    ]
    small = shrink(
        few,
        most=min(few.hidden // one.hidden for one in fitting),
        vocab=max(one.vocab for one in fitting),
    )
    return small, tuple(plan_of(grid, model=small, global_batch=grid.dp) for grid in grids)


def few_layers(model: Model, *, least: int) -> Model:
    """A chain of the model's blocks, each once, in the order in which they come first; layers are
    repeated until there are `least`.
    """
    firsts = {run.block: run for run in reversed(model.runs)}
    kept = [run for run in model.runs if firsts[run.block] is run]
    layers = [run for run in kept if model.blocks[run.block].is_layer]
    each = -(-least // len(layers)) if layers else 1
    runs: list[Run] = []
    for run in kept:
        count = each if run in layers else 1
        runs.append(
            replace(run, count=count, inputs=(runs[-1].name,) if runs and run.inputs else ())
        )
    return replace(model, runs=tuple(runs))


WINDOW, CHUNK = 5, 3
"""Keys of a window, and tokens of a scan's chunk, that texts of some tokens go beyond."""


def short(model: Model) -> Model:
    """`model` with windows and chunks of scans that short texts go beyond."""
    return short_reach(
        model, {block.sequence: ShortReach(window=WINDOW, chunk=CHUNK) for block in model.blocks}
    )
