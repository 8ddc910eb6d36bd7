"""Pipelines whose stages have degrees of their own: runs of like stages, each as a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.match import grid_of_stage
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import Named
from shardwright.strategy.plan.plan import Plan

ORDER = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Stages in a row that have the same degrees.

    Args:
        grid: of one of them, with its share of all replicas.
        layers: of each.
        recomputed: layers of each that are recomputed in full.
        bases: first device of each, lane by lane.
    """

    grid: Grid
    layers: tuple[int, ...]
    recomputed: tuple[int, ...]
    bases: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> int:
        """Of all its stages."""
        return self.grid.devices * len(self.layers)


def meshes_of(plan: Plan, *, model: Model) -> tuple[Grid, tuple[Mesh, ...]] | None:
    """A plan of like lanes in 1F1B as meshes, from the first stage on, and the grid that it were if
    all stages were as the first, with the most layers that one of them recomputes; None if lanes
    differ, a stage is no grid's, or stages differ in what waits on the host.
    """
    lane = plan.lanes[0]
    if not all(
        isinstance(order, Named) and (order.schedule, order.parameters) == (ORDER, ())
        for order in plan.orders
    ):
        return None
    if any(_form(other) != _form(lane) for other in plan.lanes) or len(
        {stage.base for stage in lane.stages}
    ) < len(lane.stages):
        return None
    found: list[Mesh] = []
    for number in range(len(lane.stages)):
        mesh = _stage(plan, number, model=model)
        if mesh is None:
            return None
        if found and found[-1].grid == mesh.grid:
            found[-1] = joined(found[-1], mesh)
        else:
            found.append(mesh)
    first, chunks = found[0].grid, tuple(layers for mesh in found for layers in mesh.layers)
    if any(
        (mesh.grid.recompute, mesh.grid.host) != (first.recompute, first.host) for mesh in found
    ):
        return None
    most = max(layers for mesh in found for layers in mesh.recomputed)
    if most and first.recompute is not Recompute.NONE:
        return None
    whole = replace(
        first,
        pp=len(chunks),
        layers=chunks if len(chunks) > 1 else (),
        schedule=ORDER,
        options=plan.options,
    )
    if most:
        alike = all(mesh.recomputed == mesh.layers for mesh in found)
        whole = replace(whole, recompute=Recompute.FULL, recompute_layers=0 if alike else most)
    return whole, tuple(found)


def _stage(plan: Plan, number: int, *, model: Model) -> Mesh | None:
    """One stage of all lanes as a mesh; None if it is no grid's."""
    lane, replicas = plan.lanes[0], len(plan.lanes)
    grid = grid_of_stage(plan, lane, number, model=model)
    if grid is None:
        return None
    layers = sum(item.count for item in lane.stages[number].items if not item.name)
    full = grid.recompute is Recompute.FULL
    recomputed = min(grid.recompute_layers or layers, layers) if full else 0
    kept = Recompute.NONE if full else grid.recompute
    grid = replace(
        grid, dp=grid.dp * replicas, layers=(), first=0, last=0, recompute=kept, recompute_layers=0
    )
    bases = tuple(other.stages[number].base for other in plan.lanes)
    return Mesh(grid=grid, layers=(layers,), recomputed=(recomputed,), bases=(bases,))


def stages_of(meshes: Sequence[Mesh]) -> Iterator[Mesh]:
    """Every stage as a mesh of its own."""
    for mesh in meshes:
        for layers, recomputed, bases in zip(mesh.layers, mesh.recomputed, mesh.bases, strict=True):
            yield Mesh(grid=mesh.grid, layers=(layers,), recomputed=(recomputed,), bases=(bases,))


def joined(one: Mesh, other: Mesh) -> Mesh:
    """Two meshes of the same degrees as one, the second behind the first."""
    return replace(
        one,
        layers=one.layers + other.layers,
        recomputed=one.recomputed + other.recomputed,
        bases=one.bases + other.bases,
    )


def _form(lane: Lane) -> Lane:
    """A lane without what lanes of one form differ in: its name and where its stages lie."""
    return replace(lane, name="", stages=tuple(replace(stage, base=0) for stage in lane.stages))
