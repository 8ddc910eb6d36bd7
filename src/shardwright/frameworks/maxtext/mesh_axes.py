"""MaxText's mesh of a plan: each axis as a degree inside a slice times one between slices.

The plan's order of ranks gives the place of each axis: going outwards, axes fill a slice, and the
remaining factors are between slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.frameworks.export.exporter import PlanToExport, Shortfall
from shardwright.frameworks.maxtext.settings import AXES
from shardwright.strategy.grid.parallelism_grid import Grid


def mesh_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a grid that MaxText's mesh cannot express."""
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
    if grid.zero == 3 and _shards(grid) % (grid.cp * grid.ep):
        yield Shortfall(
            what=f"{_shards(grid)} shards over cp {grid.cp} and ep {grid.ep}",
            hint="a multiple of both",
        )
        return
    axes = _axes_by_slice(export)
    if axes is None:
        yield Shortfall(
            what=f"axes that end inside no slice of {_slice(export)} devices",
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
    """Degree of every mesh axis: (inside a slice, between slices)."""
    return dict.fromkeys(AXES, (1, 1)) | dict(_axes_by_slice(export) or ())


def _shards(grid: Grid) -> int:
    """Ranks that share one copy of the parameters, those of cp included."""
    return grid.shard or grid.dp * grid.cp


def _replicas(grid: Grid) -> dict[str, int] | None:
    """Degrees of the mesh axes expert, fsdp and data; None if they do not give all replicas.

    The axes are listed innermost first.
    """
    # Experts' axis and that of contexts shard parameters, too.
    shards = max(_shards(grid) // (grid.cp * grid.ep), 1) if grid.zero >= 2 else 1
    copies, left = divmod(grid.dp, grid.ep * shards)
    return None if left else {"expert": grid.ep, "fsdp": shards, "data": copies}


def _axes(grid: Grid, replicas: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(mesh axis, degree) of a plan's axes, innermost first."""
    for axis in grid.order:
        if axis == "tp":
            yield ("tensor_sequence" if grid.sp else "tensor"), grid.tp
        elif axis == "cp":
            yield "context", grid.cp
        elif axis == "pp":
            yield "stage", grid.pp
        elif axis == "dp":
            yield from replicas.items()


def _slice(export: PlanToExport) -> int:
    """Number of devices of a slice."""
    return export.problem.cluster.node.island


def _axes_by_slice(export: PlanToExport) -> list[tuple[str, tuple[int, int]]] | None:
    """Mesh axes with their degrees inside and between slices, innermost first.

    None where an axis does not end at a slice's boundary, or where the replicas have no such axes.
    """
    replicas = _replicas(export.grid)
    if replicas is None:
        return None
    room, axes = min(_slice(export), export.grid.devices), []
    for axis, degree in _axes(export.grid, replicas):
        if room % degree and degree % room:
            return None
        inside = min(degree, room)
        axes.append((axis, (inside, degree // inside)))
        room //= inside
    return axes
