"""Elements of an operator's tensors, samples and positions that the cuts of a device leave it."""

from __future__ import annotations

from functools import lru_cache

from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.layout.device_cuts_in_placement_tree import Cell, CellRow
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import Way, covered_runs, indices
from shardwright.program.layout.tensor_layout import Box, Interval


@lru_cache(maxsize=4096)
def dims_present(operator: Operator) -> frozenset[Dim]:
    """The dims of `operator`, besides tokens, that a cut can apply to."""
    present = {e.dim for e in (*operator.reads, *operator.writes)}
    if operator.experts is not None and operator.klass is OperatorClass.EXPERTS:
        present.add(Dim.EXPERTS)
    if operator.attention is not None or operator.scan is not None:
        present.add(Dim.HEADS)
    return frozenset(present)


@lru_cache(maxsize=4096)
def dims_cut(operator: Operator) -> dict[Dim, Dim]:
    """By cut dim, the dim of `operator` that the cut applies to.

    ``t`` is the operator's own width. Dims that the operator lacks, and tokens, are left out.
    """
    width, present = (
        operator.width(),
        dims_present(operator) - {Dim.BATCH, Dim.SEQUENCE, Dim.REPLICATE},
    )
    applied = {dim: width if dim is Dim.WIDTH else dim for dim in Dim}
    return {dim: operator_dim for dim, operator_dim in applied.items() if operator_dim in present}


def cut_dims(cell: Cell, operator: Operator) -> dict[Dim, Way]:
    """The cuts of a cell that apply to `operator`, by the operator's dim.

    See `dims_cut`; a cut of a dim that the operator lacks makes copies.
    """
    cuts: dict[Dim, Way] = {}
    applied = dims_cut(operator)
    for dim, way in cell.ways:
        if dim in applied:
            cuts[applied[dim]] = (*cuts.get(applied[dim], ()), *way)
    return cuts


@lru_cache(maxsize=4096)
def reference_runs(operator: Operator, dim: Dim) -> int:
    """Number of runs of the operator's finest extent on a dim; 1 if no extent has the dim.

    The list in which cuts are made.
    """
    runs = [e.runs for e in (*operator.reads, *operator.writes) if e.dim is dim]
    if dim is Dim.HEADS and operator.attention is not None:
        runs.append(operator.attention.heads)
    if dim is Dim.HEADS and operator.scan is not None:
        runs.append(operator.scan.heads)
    if dim is Dim.EXPERTS and operator.experts is not None:
        runs.append(operator.experts.experts)
    return max(runs, default=1)


def interval(extent: Extent, operator: Operator, cuts: dict[Dim, Way]) -> Interval:
    """Elements [low, high) of `extent` that a device with the given cuts holds."""
    low, high = covered_runs(
        cuts.get(extent.dim, ()), extent.runs, reference_runs(operator, extent.dim)
    )
    return (low * extent.quantum, high * extent.quantum)


@lru_cache(maxsize=4096)
def intervals(cells: CellRow, operator: Operator, extent: Extent) -> tuple[Interval, ...]:
    """Elements [low, high) of `extent` under each of several cells (`interval`)."""
    runs = covered_runs_of_cells(cells, operator, extent.dim, extent.runs)
    return (
        runs
        if extent.quantum == 1
        else tuple([(low * extent.quantum, high * extent.quantum) for low, high in runs])
    )


def covered_runs_of_cells(
    cells: CellRow, operator: Operator, dim: Dim, runs: int
) -> tuple[Interval, ...]:
    """Interval of `runs` that each of several cells touches, as the operator cuts a dim.

    See `covered_runs`.
    """
    cuts = frozenset([cut for cut, meant in dims_cut(operator).items() if meant is dim])
    return _covered_runs_of_cells(cells, cuts, runs, reference_runs(operator, dim))


@lru_cache(maxsize=4096)
def _covered_runs_of_cells(
    cells: CellRow, dims: frozenset[Dim], runs: int, reference: int
) -> tuple[Interval, ...]:
    """`covered_runs` of each cell's cuts of `dims` (cached)."""
    return tuple([covered_runs(cell.way(*dims), runs, reference) for cell in cells])


def token_box(cell: Cell, *, samples: int, length: int) -> Box:
    """The box of samples and positions that a device works on."""
    return indices(cell.way(Dim.BATCH), samples), indices(cell.way(Dim.SEQUENCE), length)
