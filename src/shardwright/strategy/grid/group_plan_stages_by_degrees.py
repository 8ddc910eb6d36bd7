"""Pipelines whose stages have different degrees: groups of equal stages, each with a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.grid.plan_to_grid import grid_of_stage
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan

ORDER = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Consecutive pipeline stages that have the same degrees.

    Args:
        grid: grid of one stage, with its share of all replicas.
        layers: layers of each stage.
        recomputed: layers of each stage that are recomputed in full.
        bases: first device of each stage, lane by lane.
    """

    grid: Grid
    layers: tuple[int, ...]
    recomputed: tuple[int, ...]
    bases: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> int:
        """Number of devices of all stages of the group."""
        return self.grid.devices * len(self.layers)


def meshes_of(plan: Plan, *, model: Model) -> tuple[Grid, tuple[Mesh, ...]] | None:
    """(grid over all stages, first's degrees; groups of equal stages) of a 1F1B plan; else None.

    The grid has the first stage's degrees and recomputes as many layers as the stage that
    recomputes most. The groups are in pipeline order. None if lanes differ, if a stage has no grid,
    or if stages differ in their host memory.
    """
    lane = plan.lanes[0]
    if not all(
        isinstance(order, NamedOrder) and (order.schedule, order.parameters) == (ORDER, ())
        for order in plan.orders
    ):
        return None
    if any(
        _without_name_and_devices(replica) != _without_name_and_devices(lane)
        for replica in plan.lanes
    ) or len({stage.base for stage in lane.stages}) < len(lane.stages):
        return None
    meshes: list[Mesh] = []
    for number in range(len(lane.stages)):
        mesh = _mesh_of_stage(plan, number, model=model)
        if mesh is None:
            return None
        if meshes and meshes[-1].grid == mesh.grid:
            meshes[-1] = joined_mesh(meshes[-1], mesh)
        else:
            meshes.append(mesh)
    first_grid, chunks = meshes[0].grid, tuple(layers for mesh in meshes for layers in mesh.layers)
    if any(
        (mesh.grid.recompute, mesh.grid.host) != (first_grid.recompute, first_grid.host)
        for mesh in meshes
    ):
        return None
    most_recomputed = max(layers for mesh in meshes for layers in mesh.recomputed)
    if most_recomputed and first_grid.recompute is not Recompute.NONE:
        return None
    pipeline_grid = replace(
        first_grid,
        pp=len(chunks),
        layers=chunks if len(chunks) > 1 else (),
        schedule=ORDER,
        options=plan.options,
    )
    if most_recomputed:
        recomputes_all = all(mesh.recomputed == mesh.layers for mesh in meshes)
        pipeline_grid = replace(
            pipeline_grid,
            recompute=Recompute.FULL,
            recompute_layers=0 if recomputes_all else most_recomputed,
        )
    return pipeline_grid, tuple(meshes)


def _mesh_of_stage(plan: Plan, number: int, *, model: Model) -> Mesh | None:
    """Convert stage `number` of all lanes to a mesh; None if no grid has its split trees."""
    lane, replicas = plan.lanes[0], len(plan.lanes)
    grid = grid_of_stage(plan, lane, number, model=model)
    if grid is None:
        return None
    layers = sum(item.count for item in lane.stages[number].items if not item.name)
    full = grid.recompute is Recompute.FULL
    recomputed = min(grid.recompute_layers or layers, layers) if full else 0
    recompute = Recompute.NONE if full else grid.recompute
    grid = replace(
        grid,
        dp=grid.dp * replicas,
        layers=(),
        first=0,
        last=0,
        recompute=recompute,
        recompute_layers=0,
    )
    bases = tuple(replica.stages[number].base for replica in plan.lanes)
    return Mesh(grid=grid, layers=(layers,), recomputed=(recomputed,), bases=(bases,))


def stages_of(meshes: Sequence[Mesh]) -> Iterator[Mesh]:
    """Yield one mesh for each pipeline stage, from meshes that hold several equal stages."""
    for mesh in meshes:
        for layers, recomputed, bases in zip(mesh.layers, mesh.recomputed, mesh.bases, strict=True):
            yield Mesh(grid=mesh.grid, layers=(layers,), recomputed=(recomputed,), bases=(bases,))


def joined_mesh(mesh: Mesh, next_mesh: Mesh) -> Mesh:
    """Merge the stages of two consecutive meshes with the same degrees into one mesh."""
    return replace(
        mesh,
        layers=mesh.layers + next_mesh.layers,
        recomputed=mesh.recomputed + next_mesh.recomputed,
        bases=mesh.bases + next_mesh.bases,
    )


def _without_name_and_devices(lane: Lane) -> Lane:
    """The lane with name and first devices blanked, so that replicas compare equal."""
    return replace(lane, name="", stages=tuple(replace(stage, base=0) for stage in lane.stages))
