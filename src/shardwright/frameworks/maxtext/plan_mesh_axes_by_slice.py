"""MaxText's mesh of a plan: each axis as a degree inside a slice times one between slices.

The plan's order of ranks gives the place of each axis: going outwards, axes fill a slice, and the
remaining factors are between slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    PlanToExport,
    Shortfall,
)
from shardwright.frameworks.maxtext.settings import AXES
from shardwright.strategy.grid.parallelism_grid import Grid


def mesh_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Yield parts of a grid that MaxText's mesh cannot express: etp, ep, order, slices."""
    grid = export.grid
    if grid.ep * grid.etp > 1 and grid.etp != grid.tp:
        yield Shortfall(
            what=f"etp {grid.etp} with tp {grid.tp}: it cuts experts as it cuts layers",
            hint=f"etp {grid.tp}",
        )
    if grid.ep > 1 and (grid.cp > 1 or grid.dp % grid.ep):
        yield Shortfall(
            what=(
                f"ep {grid.ep} of dp {grid.dp} and cp {grid.cp}: its experts are dealt over"
                " replicas"
            ),
            hint="ep that divides dp, cp 1",
        )
        return
    if grid.ep > 1 and grid.order.index("dp") < grid.order.index("ep"):
        yield Shortfall(
            what="experts dealt outside replicas", hint="ep inside dp in the order of ranks"
        )
    if grid.zero == 3 and _sharding_ranks(grid) % (grid.cp * grid.ep):
        yield Shortfall(
            what=f"{_sharding_ranks(grid)} shards over cp {grid.cp} and ep {grid.ep}",
            hint="a multiple of both",
        )
        return
    axes = _axes_by_slice(export)
    if axes is None:
        yield Shortfall(
            what=f"axes that end inside no slice of {_slice_devices(export)} devices",
            hint="degrees that fill slices",
        )
        return
    for place, name in enumerate(("inside a slice", "between slices")):
        inner = [axis for axis, size in axes if size[place] > 1]
        wanted = [axis for axis in AXES if axis in inner]
        if inner != wanted:
            yield Shortfall(
                what=f"{'-'.join(inner)} {name}",
                instead=f"its own order, {'-'.join(wanted)} from the innermost",
            )


def degrees(export: PlanToExport) -> dict[str, tuple[int, int]]:
    """MaxText's mesh axis -> (degree inside a slice, between slices), (1, 1) for an unused axis."""
    return dict.fromkeys(AXES, (1, 1)) | dict(_axes_by_slice(export) or ())


def _sharding_ranks(grid: Grid) -> int:
    """Number of ranks over which ZeRO shards: the grid's shard size, or dp x cp if that is 0."""
    return grid.shard or grid.dp * grid.cp


def _replica_axes(grid: Grid) -> dict[str, int] | None:
    """MaxText's axes that make up dp -> degree: expert, fsdp, data; None if they do not divide dp.

    The axes are listed innermost first.
    """
    # Experts' axis and that of contexts shard parameters, too.
    shards = max(_sharding_ranks(grid) // (grid.cp * grid.ep), 1) if grid.zero >= 2 else 1
    copies, left = divmod(grid.dp, grid.ep * shards)
    return None if left else {"expert": grid.ep, "fsdp": shards, "data": copies}


def _mesh_axes(grid: Grid, replicas: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield (mesh axis, degree) of the grid's axes, innermost first."""
    for axis in grid.order:
        if axis == "tp":
            yield ("tensor_sequence" if grid.sp else "tensor"), grid.tp
        elif axis == "cp":
            yield "context", grid.cp
        elif axis == "pp":
            yield "stage", grid.pp
        elif axis == "dp":
            yield from replicas.items()


def _slice_devices(export: PlanToExport) -> int:
    """Number of devices of a slice: those of a scale-up island of the first node."""
    return export.problem.cluster.node.island


def _axes_by_slice(export: PlanToExport) -> list[tuple[str, tuple[int, int]]] | None:
    """(mesh axis, (degree inside a slice, between slices)) innermost first; None if not possible.

    None where an axis does not end at a slice's boundary, or where the replicas have no such axes.
    """
    replicas = _replica_axes(export.grid)
    if replicas is None:
        return None
    room, axes = min(_slice_devices(export), export.grid.devices), []
    for axis, degree in _mesh_axes(export.grid, replicas):
        if room % degree and degree % room:
            return None
        inside = min(degree, room)
        axes.append((axis, (inside, degree // inside)))
        room //= inside
    return axes
