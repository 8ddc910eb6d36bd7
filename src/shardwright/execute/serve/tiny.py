"""A model that is served in seconds: the same blocks and cuts, widths divided, each kind of layer once, windows and chunks short."""

from __future__ import annotations

from dataclasses import replace

from shardwright.execute.proof.shrink import shrink_for
from shardwright.execute.serve.served_model import require_served, served_model
from shardwright.model.ir.graph import Model, Run
from shardwright.model.ir.operator import Operator
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.expand import plan_of
from shardwright.strategy.plan.plan import Plan


def tiny_worker(model: Model, grid: Grid) -> tuple[Model, Plan]:
    """(a small model, the plan of `grid` for it): widths as small as its cuts allow, heads, experts and kinds of layers as they are.

    Raises:
        StrategyError: the model is not served (``serve.model``), or the grid does not fit it.
    """
    few = short(few_layers(served_model(model), least=grid.pp))
    require_served(few)
    small = shrink_for(plan_of(grid, model=few, global_batch=grid.dp), model=few)
    return small, plan_of(grid, model=small, global_batch=grid.dp)


def few_layers(model: Model, *, least: int) -> Model:
    """A chain of the model's blocks, each once, in the order in which they come first; layers are repeated until there are `least`."""
    firsts = {run.block: run for run in reversed(model.runs)}
    kept = [run for run in model.runs if firsts[run.block] is run]
    layers = [run for run in kept if model.blocks[run.block].is_layer]
    each = -(-least // len(layers)) if layers else 1
    runs: list[Run] = []
    for run in kept:
        count = each if run in layers else 1
        runs.append(replace(run, count=count, inputs=(runs[-1].name,) if runs and run.inputs else ()))
    return replace(model, runs=tuple(runs))


WINDOW, CHUNK = 5, 3
"""Keys of a window, and tokens of a scan's chunk, that texts of some tokens go beyond."""


def short(model: Model) -> Model:
    """`model` with windows and chunks of scans that short texts go beyond."""
    blocks = (replace(block, operators=tuple(map(_short, block.operators))) for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


def _short(operator: Operator) -> Operator:
    attention, scan = operator.attention, operator.scan
    if attention is not None and attention.window > WINDOW:
        attention = replace(attention, window=WINDOW)
    if scan is not None and scan.chunk > CHUNK:
        scan = replace(scan, chunk=CHUNK)
    return operator if attention is operator.attention and scan is operator.scan else replace(operator, attention=attention, scan=scan)
