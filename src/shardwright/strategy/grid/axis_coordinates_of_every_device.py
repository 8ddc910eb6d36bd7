"""Coordinates of a grid's devices on its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.strategy.grid.expert_mesh import fold
from shardwright.strategy.grid.parallelism_grid import AXES, Grid


def coordinates(grid: Grid) -> dict[str, list[int]]:
    """By axis (tp, cp, dp, pp, ep, etp), list of the coordinate of each device of a grid.

    Expert axes fold over those of a pipeline stage.
    """
    devices = range(grid.devices)
    strides = grid.strides()
    places = {
        axis: [device // strides[axis] % getattr(grid, axis) for device in devices]
        for axis in AXES
        if axis != "ep"
    }
    for axis, pieces in (_expert_pieces(grid) or {}).items():
        places[axis], weight = [0] * grid.devices, 1
        for size, stride in pieces:
            places[axis] = [
                place + device // stride % size * weight
                for place, device in zip(places[axis], devices, strict=True)
            ]
            weight *= size
    return places


def same_ranks(grid: Grid, order: Sequence[str]) -> bool:
    """True if no device's coordinates change when the axes are put in `order`, innermost first."""
    reordered = replace(grid, order=tuple(order))
    strides, reordered_strides = grid.strides(), reordered.strides()
    if any(strides[axis] != reordered_strides[axis] for axis in strides if getattr(grid, axis) > 1):
        return False
    return _expert_pieces(grid) == _expert_pieces(reordered)


def _expert_pieces(grid: Grid) -> dict[str, list[tuple[int, int]]] | None:
    """(size, device stride) of the pieces of ep and etp, innermost first; None if they misfit.

    None if they do not line up with the other axes.
    """
    pieces = fold(grid) if grid.ep * grid.etp > 1 else ()
    if pieces is None:
        return None
    return {
        axis: [(piece.size, piece.stride) for piece in pieces if piece.expert == axis]
        for axis in ("ep", "etp")
    }
