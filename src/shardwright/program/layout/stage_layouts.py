"""Where the tensors of a stage lie: what each operator makes, reads and returns, device by device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent
from shardwright.program.layout.cells import Cell, StageCells, Way, cut_dims, image, interval, reference_runs, token_box
from shardwright.program.layout.layout import Holding, Interval, Layout
from shardwright.program.layout.projection import PARTS, TOKENS, projection


def stream_operator(extents: tuple[Extent, ...]) -> Operator:
    """The residual stream as an operator: what a block's input comes from and its output goes to."""
    return Operator(name="input", kind=OperatorKind.RESIDUAL, klass=OperatorClass.STREAM, inputs=(), reads=extents, writes=extents)


def one_layout(stage: StageCells, layout: Layout) -> Layout:
    """One object for equal layouts of a stage."""
    return stage.boxes.setdefault(layout, layout)


def _kept(stage: StageCells, key: Hashable, made: Callable[[], Iterator[Holding]]) -> Layout:
    if key not in stage.boxes:
        stage.boxes[key] = one_layout(stage, tuple(made()))
    return stage.boxes[key]


def made_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Where `operator` leaves one of its extents: boxes of (samples, positions, elements); parts of a sum where it contracts a cut dim."""
    return _kept(stage, ("made", operator, extent, length), lambda: _made(stage, operator, extent, length))


def _made(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Iterator[Holding]:
    written = {e.dim for e in operator.writes}

    def made(cell: Cell) -> tuple[Interval, Hashable | None]:
        cuts = cut_dims(cell, operator)
        return interval(extent, operator, cuts), _part_of_sum(operator, {d: w for d, w in cuts.items() if d not in written})

    return _lying(stage, operator, length, made)


def wanted_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """Where `operator` reads an extent that another one makes."""
    return _kept(
        stage,
        ("wanted", operator, extent, length),
        lambda: _lying(stage, operator, length, lambda cell: (_read(operator, extent, cell), None)),
    )


def _read(operator: Operator, extent: Extent, cell: Cell) -> Interval:
    cuts = cut_dims(cell, operator) if any(e.dim is extent.dim for e in operator.reads) else {}
    return interval(extent, operator, cuts)


def cotangent_layout(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Layout:
    """What `operator` returns for an extent that it read: parts of a sum where it cuts a dim that the tensor lacks.

    A key head that several parts of the query heads read is returned by each of them in part; it stays so until the weight's gradient.
    """
    return _kept(stage, ("cotangent", operator, extent, length), lambda: _returned(stage, operator, extent, length))


def _returned(stage: StageCells, operator: Operator, extent: Extent, length: int) -> Iterator[Holding]:
    read = {e.dim for e in operator.reads}

    def returned(cell: Cell) -> tuple[Interval, Hashable | None]:
        others = {d: w for d, w in cut_dims(cell, operator).items() if d is not extent.dim or d not in read}
        return _read(operator, extent, cell), _part_of_sum(operator, others)

    return _lying(stage, operator, length, returned)


def _part_of_sum(operator: Operator, cuts: dict[Dim, Way]) -> Hashable | None:
    """Which part of a sum a device has that does its part of these dims; None if it has all."""
    return tuple((d, image(w, reference_runs(operator, d), reference_runs(operator, d))) for d, w in cuts.items()) or None


def _lying(
    stage: StageCells, operator: Operator, length: int, held: Callable[[Cell], tuple[Interval, Hashable | None]]
) -> Iterator[Holding]:
    """What each device has, from its tokens and from what its parts of all other dims give; equal parts are looked at once."""
    tokens, parts = (projection(stage, operator.klass, dims) for dims in (TOKENS, PARTS))
    boxes = [token_box(cell, samples=stage.samples, length=length) for cell in tokens.cells]
    elements = [held(cell) for cell in parts.cells]
    for device, token, number in zip(tokens.devices.tolist(), tokens.number.tolist(), parts.number.tolist(), strict=True):
        if all(boxes[token]):
            own, part = elements[number]
            yield Holding(device=device, box=(*boxes[token], (own,)), part=part)
