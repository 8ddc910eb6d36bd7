"""Where the tensors of a stage lie: what each operator makes, reads and returns,
device by device.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent
from shardwright.program.layout.cells import (
    Cells,
    StageCells,
    images,
    intervals,
    meanings,
    reference_runs,
)
from shardwright.program.layout.layout import Holding, Interval, Layout
from shardwright.program.layout.projection import PARTS, projection, tokens


def stream_operator(extents: tuple[Extent, ...]) -> Operator:
    """The residual stream as an operator:
    what a block's input comes from and its output goes to.
    """
    return Operator(
        name="input",
        kind=OperatorKind.RESIDUAL,
        klass=OperatorClass.STREAM,
        inputs=(),
        reads=extents,
        writes=extents,
    )


def one_layout(stage: StageCells, layout: Layout) -> Layout:
    """One object for equal layouts of a stage."""
    return stage.boxes.setdefault(layout, layout)


@lru_cache(maxsize=16384)
def made_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Where `operator` leaves one of its extents: boxes of (samples, positions, elements); parts of
    a sum where it contracts a cut dim.
    """
    cells = projection(stage, operator.klass, PARTS).cells
    parts = _parts_of_sums(cells, operator, frozenset([e.dim for e in operator.writes]))
    return _lying(stage, operator.klass, length, intervals(cells, operator, extent), parts)


@lru_cache(maxsize=16384)
def wanted_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Where `operator` reads an extent that another one makes."""
    cells = projection(stage, operator.klass, PARTS).cells
    return _lying(
        stage, operator.klass, length, _read(cells, operator, extent), (None,) * len(cells)
    )


@lru_cache(maxsize=16384)
def cotangent_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """What `operator` returns for an extent that it read: parts of a sum where it cuts a dim that
    the tensor lacks.

    A key head that several parts of the query heads read is returned by each of them in part; it
    stays so until the weight's gradient.
    """
    cells = projection(stage, operator.klass, PARTS).cells
    parts = _parts_of_sums(
        cells, operator, frozenset([e.dim for e in operator.reads if e.dim is extent.dim])
    )
    return _lying(stage, operator.klass, length, _read(cells, operator, extent), parts)


def _read(cells: Cells, operator: Operator, extent: Extent) -> tuple[Interval, ...]:
    """What is read of an extent under each of some cells: all of a dim that the operator does not
    name.
    """
    named = extent.dim in [e.dim for e in operator.reads]
    return intervals(cells, operator, extent) if named else ((0, extent.size),) * len(cells)


@lru_cache(maxsize=4096)
def _parts_of_sums(
    cells: Cells, operator: Operator, kept: frozenset[Dim]
) -> tuple[Hashable | None, ...]:
    """Which part of a sum a device has under each of some cells, by its parts of all dims but those
    that are `kept`; None if it has all.
    """
    summed = {dim: meant for dim, meant in meanings(operator).items() if meant not in kept}
    found = {
        meant: images(cells, operator, meant, reference_runs(operator, meant))
        for meant in summed.values()
    }
    cuts = [dict.fromkeys([summed[dim] for dim, _ in cell.ways if dim in summed]) for cell in cells]
    return tuple(
        [
            tuple([(meant, found[meant][number]) for meant in own]) or None
            for number, own in enumerate(cuts)
        ]
    )


def _lying(
    stage: StageCells,
    klass: OperatorClass,
    length: int,
    elements: tuple[Interval, ...],
    parts: tuple[Hashable | None, ...],
) -> Layout:
    """What each device has, from its tokens and from what its parts of all other dims give; made
    once for all operators of one tree.
    """
    key = id(stage.cells.get(klass)), length, elements, parts
    if key not in stage.boxes:
        own, rest = tokens(stage, klass, length), projection(stage, klass, PARTS)
        columns = (own.devices.tolist(), *own.number.tolist(), rest.number.tolist())
        samples, positions = own.parts
        places = [
            (d, (samples[b], positions[p]), number)
            for d, b, p, number in zip(*columns, strict=True)
            if samples[b] and positions[p]
        ]
        found = [
            Holding(device=d, box=(*token, (elements[number],)), part=parts[number])
            for d, token, number in places
        ]
        stage.boxes[key] = one_layout(stage, tuple(found))
    return stage.boxes[key]
