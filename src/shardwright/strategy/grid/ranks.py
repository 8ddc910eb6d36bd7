"""Which place each device of a grid has on every axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.strategy.grid.axes import AXES, Grid
from shardwright.strategy.grid.expert_mesh import fold


def coordinates(grid: Grid) -> dict[str, list[int]]:
    """Each device's place on tp, cp, dp, pp, ep and etp: list d is device d's. Experts' axes fold
    over those of a pipeline stage.
    """
    devices = range(grid.devices)
    strides = grid.strides()
    found = {
        axis: [device // strides[axis] % getattr(grid, axis) for device in devices]
        for axis in AXES
        if axis != "ep"
    }
    for axis, pieces in (_expert_pieces(grid) or {}).items():
        found[axis], weight = [0] * grid.devices, 1
        for size, stride in pieces:
            found[axis] = [
                n + device // stride % size * weight
                for n, device in zip(found[axis], devices, strict=True)
            ]
            weight *= size
    return found


def same_ranks(grid: Grid, order: Sequence[str]) -> bool:
    """Each device has the place on every axis that it has in `grid`, if the axes are in another
    order, from the innermost.
    """
    other = replace(grid, order=tuple(order))
    one, two = grid.strides(), other.strides()
    if any(one[axis] != two[axis] for axis in one if getattr(grid, axis) > 1):
        return False
    return _expert_pieces(grid) == _expert_pieces(other)


def _expert_pieces(grid: Grid) -> dict[str, list[tuple[int, int]]] | None:
    """(size, stride) of the pieces of ep and etp, innermost first; None if they do not line up with
    the other axes.
    """
    pieces = fold(grid) if grid.ep * grid.etp > 1 else ()
    if pieces is None:
        return None
    return {
        axis: [(piece.size, piece.stride) for piece in pieces if piece.expert == axis]
        for axis in ("ep", "etp")
    }
