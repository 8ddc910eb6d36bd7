"""MaxText's mesh: the degrees of a grid as its axes, each as what lies inside a slice times what
lies between slices.

Where a plan's axes lie is what its order of ranks says: going outwards, they fill a slice, and what
is left of them is between slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.frameworks.export.exporter import Given, Shortfall
from shardwright.frameworks.maxtext.settings import AXES
from shardwright.strategy.grid.grid import Grid


def mesh_shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a grid that MaxText's mesh cannot express."""
    grid = given.grid
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
    found = _filled(given)
    if found is None:
        yield Shortfall(
            what=f"axes that end inside no slice of {_slice(given)} devices",
            hint="degrees that fill slices",
        )
        return
    for place, name in enumerate(("inside a slice", "between slices")):
        inner = [axis for axis, size in found if size[place] > 1]
        wanted = [axis for axis in AXES if axis in inner]
        if inner != wanted:
            yield Shortfall(
                what=f"{'-'.join(inner)} {name}",
                instead=f"its own order, {'-'.join(wanted)} from the innermost",
            )


def degrees(given: Given) -> dict[str, tuple[int, int]]:
    """Every axis of its mesh: (inside a slice, between slices)."""
    return dict.fromkeys(AXES, (1, 1)) | dict(_filled(given) or ())


def _shards(grid: Grid) -> int:
    return grid.shard or grid.dp * grid.cp


def _replicas(grid: Grid) -> dict[str, int] | None:
    """The plan's replicas as axes of the mesh, from the innermost; None where these do not make up
    all replicas.
    """
    # Experts' axis and that of contexts shard parameters, too.
    shards = max(_shards(grid) // (grid.cp * grid.ep), 1) if grid.zero >= 2 else 1
    copies, left = divmod(grid.dp, grid.ep * shards)
    return None if left else {"expert": grid.ep, "fsdp": shards, "data": copies}


def _axes(grid: Grid, replicas: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Axes of the plan from the innermost, in the mesh's words."""
    for axis in grid.order:
        if axis == "tp":
            yield ("tensor_sequence" if grid.sp else "tensor"), grid.tp
        elif axis == "cp":
            yield "context", grid.cp
        elif axis == "pp":
            yield "stage", grid.pp
        elif axis == "dp":
            yield from replicas.items()


def _slice(given: Given) -> int:
    return given.problem.cluster.node.island


def _filled(given: Given) -> list[tuple[str, tuple[int, int]]] | None:
    """The plan's axes with their parts inside and between slices; None where one ends inside no
    slice, or none says the replicas.
    """
    replicas = _replicas(given.grid)
    if replicas is None:
        return None
    room, found = min(_slice(given), given.grid.devices), []
    for axis, degree in _axes(given.grid, replicas):
        if room % degree and degree % room:
            return None
        inside = min(degree, room)
        found.append((axis, (inside, degree // inside)))
        room //= inside
    return found
