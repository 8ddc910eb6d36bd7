"""A small model of the same structure: every width divided, every count (layers, heads, experts)
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.operator_constants import LongRotary, Settings
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.layout.device_cells import cut_dims, reference_runs
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.plan.plan import Plan

SMALLEST = 4
"""Least width that a head keeps: rotary positions turn pairs."""
VOCAB = 64
"""Most rows of a small vocabulary."""


def narrower_model(model: Model, *, most: int = 0, vocab: int = VOCAB) -> Model:
    """`model` with hidden, feed-forward, head and latent widths divided by one number, and a small
    vocabulary.

    The number is the largest power of two that divides all of them and leaves heads of at least
    SMALLEST elements. Chunks of scans keep their length. A plan of the model is one of the small
    model too where the widths that are left have enough runs for its cuts; heads and experts keep
    their number.

    Args:
        most: largest number to divide by; 0 = any.
        vocab: most rows of the vocabulary.
    """
    divisor = min(largest_divisor(model), most or largest_divisor(model))
    blocks = tuple(_block(b, divisor, vocab) for b in model.blocks)
    settings = _settings(model, divisor, vocab=min(model.vocab, vocab))
    return replace(
        model,
        blocks=blocks,
        hidden=model.hidden // divisor,
        vocab=min(model.vocab, vocab),
        settings=settings,
    )


def narrowest_model(plan: Plan, *, model: Model) -> Model:
    """The smallest such model in which every part that `plan` cuts a width into still has a run of
    its own.

    Without that the small model's devices would hold copies, or nothing, where the real one's hold
    parts.
    """
    most, vocab = largest_divisor(model), VOCAB
    while True:
        small = narrower_model(model, most=most, vocab=vocab)
        lacking = {
            dim
            for dim in (Dim.HIDDEN, Dim.FFN, Dim.VOCAB)
            if not _has_enough_runs(plan, dim, model=model, small=small)
        }
        if Dim.VOCAB in lacking:
            vocab *= 2
        elif lacking:
            most //= 2
        else:
            return small


def _has_enough_runs(plan: Plan, dim: Dim, *, model: Model, small: Model) -> bool:
    """True if every operator's cut of `dim` finds enough runs in the narrower model."""
    for one, other in zip(_cuts(plan, dim, model), _cuts(plan, dim, small), strict=True):
        (parts, runs), (_, fewer) = one, other
        if fewer < runs and fewer < parts:
            return False
    return True


def _cuts(plan: Plan, dim: Dim, model: Model) -> Iterator[tuple[int, int]]:
    """(parts, runs) of a dim for every device's every operator."""
    for stage in (stage for lane in plan_stages(plan, model=model) for stage in lane):
        for segment in stage.segments:
            for operator in segment.block.operators:
                for cell in dict.fromkeys(segment.cells.cells.get(operator.klass, {}).values()):
                    way = cut_dims(cell, operator).get(dim, ())
                    yield prod(step.total for step in way), reference_runs(operator, dim)


def _widths_of(operator: Operator, parameter: Parameter) -> tuple[Extent, ...]:
    """Extents of a parameter that are widths: taps of a convolution are not."""
    return parameter.extents[:1] if operator.kind is OperatorKind.CONV else parameter.extents


def _rounds_up(operator: Operator) -> bool:
    """True if a written token's elements do not divide evenly over its neighbours, so that its
    width follows from the weights' width.
    """
    made = zip(operator.writes, operator.parameters, strict=False)
    return (
        operator.kind is OperatorKind.LINEAR
        and operator.folds > 1
        and any(e.size * operator.folds != p.extents[-1].size for e, p in made)
    )


def _widths(model: Model) -> list[int]:
    found = [model.hidden]
    for operator in (o for b in model.blocks for o in b.operators):
        written = () if _rounds_up(operator) else operator.writes
        extents = [
            *operator.reads,
            *written,
            *(e for p in operator.parameters for e in _widths_of(operator, p)),
        ]
        found += [e.quantum for e in extents if e.dim is Dim.HEADS and e.quantum > 1]
        found += [e.size for e in extents if e.dim in (Dim.HIDDEN, Dim.FFN) and e.size > 1]
        if operator.attention is not None:
            found += [operator.attention.head_dim, operator.attention.value_dim]
        if operator.scan is not None:
            found += [s for s in (operator.scan.head_dim, operator.scan.state) if s > 1]
    return found


def largest_divisor(model: Model) -> int:
    """The largest power of two that divides all widths and leaves at least SMALLEST elements of
    each.
    """
    widths = _widths(model)
    common = gcd(*widths)
    divisor = 1
    while common % (2 * divisor) == 0 and min(widths) // (2 * divisor) >= SMALLEST:
        divisor *= 2
    return divisor


def _settings(model: Model, divisor: int, *, vocab: int) -> Settings:
    """Numbers of the small model: where every pair of turned elements has a factor, those of the
    pairs that are left; the image's token is in the small vocabulary.
    """
    known = model.settings
    if known.image is not None:
        known = replace(known, image=replace(known.image, token=min(known.image.token, vocab - 1)))
    if not isinstance(known.longer, LongRotary):
        return known
    widths = {
        o.reads[0].quantum // divisor
        for b in model.blocks
        for o in b.operators
        if o.kind is OperatorKind.ROTARY
    }
    most = min((int(width * known.rope_share) // 2 for width in widths), default=0)
    short, long = (factors[::divisor][:most] for factors in (known.longer.short, known.longer.long))
    return replace(known, longer=replace(known.longer, short=short, long=long))


def _extent(extent: Extent, divisor: int, vocab: int) -> Extent:
    if extent.dim is Dim.VOCAB:
        return replace(extent, size=min(extent.size, vocab), quantum=1)
    if extent.dim is Dim.HEADS and extent.quantum > 1:
        return replace(extent, size=extent.size // divisor, quantum=extent.quantum // divisor)
    if extent.dim in (Dim.HIDDEN, Dim.FFN) and extent.size > 1:
        return replace(extent, size=extent.size // divisor)
    return extent


def _parameter(operator: Operator, parameter: Parameter, divisor: int, vocab: int) -> Parameter:
    widths = _widths_of(operator, parameter)
    return replace(
        parameter,
        extents=(*(_extent(e, divisor, vocab) for e in widths), *parameter.extents[len(widths) :]),
    )


def _operator(operator: Operator, divisor: int, vocab: int) -> Operator:
    attention, scan = operator.attention, operator.scan
    if attention is not None:
        attention = replace(
            attention,
            head_dim=attention.head_dim // divisor,
            value_dim=attention.value_dim // divisor,
        )
    if scan is not None:
        scan = replace(
            scan,
            head_dim=scan.head_dim // divisor if scan.head_dim > 1 else 1,
            state=scan.state // divisor if scan.state > 1 else 1,
        )
    parameters = tuple(_parameter(operator, p, divisor, vocab) for p in operator.parameters)
    writes = tuple(_extent(e, divisor, vocab) for e in operator.writes)
    if _rounds_up(operator):
        pairs = zip(writes, parameters, strict=False)
        writes = tuple(replace(e, size=-(-p.extents[-1].size // operator.folds)) for e, p in pairs)
    return replace(
        operator,
        reads=tuple(_extent(e, divisor, vocab) for e in operator.reads),
        writes=writes,
        parameters=parameters,
        attention=attention,
        scan=scan,
    )


def _block(block: Block, divisor: int, vocab: int) -> Block:
    return replace(block, operators=tuple(_operator(o, divisor, vocab) for o in block.operators))
