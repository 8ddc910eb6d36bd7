"""Layouts of a stage's tensors: boxes that each operator makes, reads and returns.

Device by device.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.layout.device_cuts_in_placement_tree import CellRow, StageCells
from shardwright.program.layout.device_parts_of_dims import (
    covered_runs_of_cells,
    dims_cut,
    intervals,
    reference_runs,
)
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    PARTS,
    projection,
    tokens,
)
from shardwright.program.layout.tensor_layout import Holding, Interval, Layout


def stream_operator(extents: tuple[Extent, ...]) -> Operator:
    """Placeholder operator ``input``, as maker of a block's input and reader of its output."""
    return Operator(
        name="input",
        kind=OperatorKind.RESIDUAL,
        klass=OperatorClass.STREAM,
        inputs=(),
        reads=extents,
        writes=extents,
    )


def interned_layout(stage: StageCells, layout: Layout) -> Layout:
    """The stage's one object for equal layouts."""
    return stage.boxes.setdefault(layout, layout)


@lru_cache(maxsize=16384)
def made_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Layout in which `operator` leaves one of its outputs, full or as parts of a sum.

    Boxes of (samples, positions, elements); parts of a sum where it contracts a cut dim.
    """
    cells = projection(stage, operator.klass, PARTS).cells
    parts = _parts_of_sums(cells, operator, frozenset([e.dim for e in operator.writes]))
    return _layout_of(stage, operator.klass, length, intervals(cells, operator, extent), parts)


@lru_cache(maxsize=16384)
def wanted_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Layout in which `operator` reads an extent that another operator makes."""
    cells = projection(stage, operator.klass, PARTS).cells
    return _layout_of(
        stage, operator.klass, length, _elements_read(cells, operator, extent), (None,) * len(cells)
    )


@lru_cache(maxsize=16384)
def cotangent_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Layout of the cotangent that `operator` returns for an extent that it read.

    Parts of a sum where the operator cuts a dim that the tensor lacks.

    A key head that several parts of the query heads read is returned by each of them in part; it
    stays so until the weight's gradient.
    """
    cells = projection(stage, operator.klass, PARTS).cells
    parts = _parts_of_sums(
        cells, operator, frozenset([e.dim for e in operator.reads if e.dim is extent.dim])
    )
    return _layout_of(stage, operator.klass, length, _elements_read(cells, operator, extent), parts)


def _elements_read(cells: CellRow, operator: Operator, extent: Extent) -> tuple[Interval, ...]:
    """By cell, interval of an extent that an operator reads; all of a dim it does not name."""
    named = extent.dim in [e.dim for e in operator.reads]
    return intervals(cells, operator, extent) if named else ((0, extent.size),) * len(cells)


@lru_cache(maxsize=4096)
def _parts_of_sums(
    cells: CellRow, operator: Operator, kept: frozenset[Dim]
) -> tuple[Hashable | None, ...]:
    """By cell: its parts of the dims that the operator sums over (partial sum); None if full."""
    summed = {
        dim: dim_of_operator
        for dim, dim_of_operator in dims_cut(operator).items()
        if dim_of_operator not in kept
    }
    runs = {
        dim_of_operator: covered_runs_of_cells(
            cells, operator, dim_of_operator, reference_runs(operator, dim_of_operator)
        )
        for dim_of_operator in summed.values()
    }
    cuts = [dict.fromkeys([summed[dim] for dim, _ in cell.ways if dim in summed]) for cell in cells]
    return tuple(
        [
            tuple(
                [
                    (dim_of_operator, runs[dim_of_operator][number])
                    for dim_of_operator in cut_dims_of_cell
                ]
            )
            or None
            for number, cut_dims_of_cell in enumerate(cuts)
        ]
    )


def _layout_of(
    stage: StageCells,
    klass: OperatorClass,
    length: int,
    elements: tuple[Interval, ...],
    parts: tuple[Hashable | None, ...],
) -> Layout:
    """Layout of a class's devices from their tokens and elements of other dims (cached).

    Made once for all operators of one tree.
    """
    key = id(stage.cells.get(klass)), length, elements, parts
    if key not in stage.boxes:
        token_parts, other_parts = tokens(stage, klass, length), projection(stage, klass, PARTS)
        columns = (
            token_parts.devices.tolist(),
            *token_parts.number.tolist(),
            other_parts.number.tolist(),
        )
        samples, positions = token_parts.parts
        places = [
            (d, (samples[b], positions[p]), number)
            for d, b, p, number in zip(*columns, strict=True)
            if samples[b] and positions[p]
        ]
        holdings = [
            Holding(device=d, box=(*token, (elements[number],)), part=parts[number])
            for d, token, number in places
        ]
        stage.boxes[key] = interned_layout(stage, tuple(holdings))
    return stage.boxes[key]
