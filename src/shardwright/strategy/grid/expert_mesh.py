"""Folding of the expert mesh (etp, ep, edp) over the devices of a pipeline stage (tp, cp, dp)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPiece:
    """Devices that lie on one axis of the dense mesh and on one axis of the expert mesh.

    There are `size` of them, `stride` devices apart.
    """

    dense: str
    expert: str
    size: int
    stride: int


def dense_axes(grid: Grid) -> tuple[tuple[str, int, int], ...]:
    """(axis, size, device stride) of a stage's tp, ulysses, ring and dp above 1, innermost first.

    Axes of size 1 are left out. Context parallelism counts as two axes: ulysses inside ring.
    """
    strides = grid.strides()
    sizes = {"tp": grid.tp, "dp": grid.dp}
    axes: list[tuple[str, int, int]] = []
    for axis in grid.order:
        if axis == "cp":
            axes += [
                ("ulysses", grid.ulysses, strides["cp"]),
                ("ring", grid.ring, strides["cp"] * grid.ulysses),
            ]
        elif axis in sizes:
            axes.append((axis, sizes[axis], strides[axis]))
    return tuple(a for a in axes if a[1] > 1)


def expert_axes(grid: Grid) -> tuple[tuple[str, int], ...]:
    """(axis, size) of a stage's etp, ep and edp above 1, innermost axis first.

    etp has the place of tp and edp the place of dp; cp has no place of its own (Megatron's rule).
    """
    sizes = {"tp": ("etp", grid.etp), "ep": ("ep", grid.ep), "dp": ("edp", grid.edp)}
    return tuple(sizes[axis] for axis in grid.order if axis in sizes and sizes[axis][1] > 1)


def fold(grid: Grid) -> tuple[MeshPiece, ...] | None:
    """Pieces, innermost first, that tile a stage's dense and expert mesh alike; None on misfit.

    None if an axis of one mesh cuts an axis of the other unevenly. None also if a cut of the
    sequence that copies experts lies inside one that splits experts: then the tokens of one set of
    expert copies are not the tokens of one set of devices.

    Both meshes count the same devices in the same order (position in the dense mesh), so the pieces
    of one must tile the other.
    """
    dense, expert = list(dense_axes(grid)), list(expert_axes(grid))
    pieces: list[MeshPiece] = []
    while dense and expert:
        (axis, size, stride), (expert_axis, count) = dense.pop(0), expert.pop(0)
        small, large = min(size, count), max(size, count)
        if large % small:
            return None
        pieces.append(MeshPiece(dense=axis, expert=expert_axis, size=small, stride=stride))
        if size > small:
            dense.insert(0, (axis, size // small, stride * small))
        if count > small:
            expert.insert(0, (expert_axis, count // small))
    return (
        None
        if dense or expert or not _sequence_copies_outside_splits(grid, pieces)
        else tuple(pieces)
    )


FOLDED: Final = ("tp", "cp", "ep", "etp", "dp", "ulysses", "sp")
"""Columns that `mesh_folds` reads."""


def mesh_folds(columns: Mapping[str, IntArray], order: tuple[str, ...]) -> BoolArray:
    """True for each grid whose expert mesh lines up with its dense mesh (`fold`), shape (rows,).

    All grids have the same order of axes.

    Each boundary of an axis, in devices of a stage, divides the next larger one of either mesh.

    Args:
        columns: FOLDED of each grid, whose ep x etp divides tp x cp x dp.
    """
    c = columns
    edp = c["tp"] * c["cp"] * c["dp"] // (c["ep"] * c["etp"])
    dense: dict[str, IntArray] = {
        "tp": c["tp"],
        "ulysses": c["ulysses"],
        "ring": c["cp"] // c["ulysses"],
        "dp": c["dp"],
    }
    expert: dict[str, IntArray] = {"tp": c["etp"], "ep": c["ep"], "dp": edp}
    names = [
        name
        for axis in order
        for name in (("ulysses", "ring") if axis == "cp" else (axis,))
        if name in dense
    ]
    outer = {name: (begin, end) for name, begin, end in _boundaries(names, dense)}
    inner = {
        name: (begin, end)
        for name, begin, end in _boundaries([axis for axis in order if axis in expert], expert)
    }
    ends = np.sort(np.stack([end for _, end in (*outer.values(), *inner.values())]), axis=0)
    # A degree that divides nothing leaves parts of no device, which fold over none.
    aligned: BoolArray = np.all(
        [(small > 0) & (large % np.maximum(small, 1) == 0) for small, large in pairwise(ends)],
        axis=0,
    )
    splits = np.zeros(len(edp), dtype=np.bool_)
    for name in ("ring", "ulysses", "tp"):
        begin, end = outer[name]
        shares_devices = {
            axis: np.maximum(begin, low) < np.minimum(end, high)
            for axis, (low, high) in inner.items()
        }
        counted = c["sp"] > 0 if name == "tp" else np.ones_like(splits)
        aligned &= ~(counted & splits & shares_devices["dp"])
        splits |= counted & (shares_devices["tp"] | shares_devices["ep"])
    return aligned


def _boundaries(
    names: Iterable[str], sizes: Mapping[str, IntArray]
) -> list[tuple[str, IntArray, IntArray]]:
    """(axis, devices inside the axis, those times its size) of each axis, innermost first."""
    boundaries, devices_inside = [], np.ones_like(next(iter(sizes.values())))
    for name in names:
        boundaries.append((name, devices_inside, devices_inside * sizes[name]))
        devices_inside = devices_inside * sizes[name]
    return boundaries


def _sequence_copies_outside_splits(grid: Grid, pieces: list[MeshPiece]) -> bool:
    """True if no sequence cut that copies experts is inside a sequence cut that splits experts."""
    splits = False
    for axis in ("ring", "ulysses", "tp") if grid.sp else ("ring", "ulysses"):
        kinds = {atom.expert for atom in pieces if atom.dense == axis}
        if splits and "edp" in kinds:
            return False
        splits = splits or bool(kinds - {"edp"})
    return True
