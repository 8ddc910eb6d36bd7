"""Pipelines whose stages have degrees of their own: runs of like stages, each as a grid."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.model.ir.graph import Model
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.match import grid_of_stage
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import Named
from shardwright.strategy.plan.plan import Plan

ORDER = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Stages in a row that have the same degrees.

    Args:
        grid: of one of them, with its share of all replicas. layers: of each. bases: first device of each, lane by lane.
    """

    grid: Grid
    layers: tuple[int, ...]
    bases: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> int:
        """Of all its stages."""
        return self.grid.devices * len(self.layers)


def meshes_of(plan: Plan, *, model: Model) -> tuple[Grid, tuple[Mesh, ...]] | None:
    """A plan of like lanes in 1F1B as meshes, from the first stage on, and the grid that it were if all stages were as the first; None if
    lanes differ, a stage is no grid's, or stages recompute otherwise than others.
    """
    lane, replicas = plan.lanes[0], len(plan.lanes)
    if not all(isinstance(order, Named) and (order.schedule, order.parameters) == (ORDER, ()) for order in plan.orders):
        return None
    if any(_form(other) != _form(lane) for other in plan.lanes) or len({stage.base for stage in lane.stages}) < len(lane.stages):
        return None
    found: list[Mesh] = []
    for number, stage in enumerate(lane.stages):
        alone = grid_of_stage(plan, lane, number, model=model)
        if alone is None:
            return None
        layers = sum(item.count for item in stage.items if not item.name)
        if alone.recompute_layers >= layers:
            alone = replace(alone, recompute_layers=0)
        grid = replace(alone, dp=alone.dp * replicas, layers=(), first=0, last=0)
        bases = tuple(other.stages[number].base for other in plan.lanes)
        if found and found[-1].grid == grid:
            last = found.pop()
            found.append(replace(last, layers=(*last.layers, layers), bases=(*last.bases, bases)))
        else:
            found.append(Mesh(grid=grid, layers=(layers,), bases=(bases,)))
    first = found[0].grid
    if any(
        (m.grid.recompute, m.grid.recompute_layers, m.grid.host) != (first.recompute, first.recompute_layers, first.host) for m in found
    ):
        return None
    chunks = tuple(layers for mesh in found for layers in mesh.layers)
    whole = replace(first, pp=len(chunks), layers=chunks if len(chunks) > 1 else (), schedule=ORDER, options=plan.options)
    return whole, tuple(found)


def _form(lane: Lane) -> Lane:
    """A lane without what lanes of one form differ in: its name and where its stages lie."""
    return replace(lane, name="", stages=tuple(replace(stage, base=0) for stage in lane.stages))
