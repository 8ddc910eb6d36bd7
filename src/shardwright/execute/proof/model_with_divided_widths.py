"""Small model of the same structure: widths divided, numbers of layers, heads and experts kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import LongRotary, Settings
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.layout.device_parts_of_dims import cut_dims, reference_runs
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.plan.plan import Plan

SMALLEST = 4
"""Minimum width of a head: rotary positions rotate pairs."""
VOCAB = 64
"""Maximum rows of a small vocabulary."""


def narrower_model(model: Model, *, most: int = 0, vocab: int = VOCAB) -> Model:
    """Model with widths divided by the largest power of two (<= `most` if not 0); small vocabulary.

    Divided are hidden, feed-forward, head and latent widths.

    The number is the largest power of two that divides all of them and leaves heads of at least
    SMALLEST elements. Chunks of scans keep their length. A plan of the model is also a plan of the
    small model if the remaining widths have enough runs for its cuts; heads and experts keep their
    number.

    Args:
        most: maximum divisor; 0 = any.
        vocab: maximum rows of the vocabulary.
    """
    divisor = min(largest_divisor(model), most or largest_divisor(model))
    blocks = tuple(_narrower_block(b, divisor, vocab) for b in model.blocks)
    settings = _narrower_settings(model, divisor, vocab=min(model.vocab, vocab))
    return replace(
        model,
        blocks=blocks,
        hidden=model.hidden // divisor,
        vocab=min(model.vocab, vocab),
        settings=settings,
    )


def narrowest_model(plan: Plan, *, model: Model) -> Model:
    """Narrowest model that `plan` still divides into as many non-empty parts as the full one.

    Otherwise devices would hold copies, or nothing, where those of the full model hold parts.
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
    """True if `small` has as many runs of `dim` as parts of each cut, or as the full model has."""
    for full_cut, small_cut in zip(
        _parts_and_runs(plan, dim, model), _parts_and_runs(plan, dim, small), strict=True
    ):
        (parts, runs), (_, small_runs) = full_cut, small_cut
        if small_runs < runs and small_runs < parts:
            return False
    return True


def _parts_and_runs(plan: Plan, dim: Dim, model: Model) -> Iterator[tuple[int, int]]:
    """Iterate over (parts of the cut, indivisible runs) of `dim`, for each operator's cells."""
    for stage in (stage for lane in plan_stages(plan, model=model) for stage in lane):
        for segment in stage.segments:
            for operator in segment.block.operators:
                for cell in dict.fromkeys(segment.cells.cells.get(operator.klass, {}).values()):
                    cut = cut_dims(cell, operator).get(dim, ())
                    yield prod(step.total for step in cut), reference_runs(operator, dim)


def _width_extents(operator: Operator, parameter: Parameter) -> tuple[Extent, ...]:
    """Extents of a parameter that are widths (the taps of a convolution are not)."""
    return parameter.extents[:1] if operator.kind is OperatorKind.CONV else parameter.extents


def _rounds_up(operator: Operator) -> bool:
    """True if the elements of a merged token are no multiple of the neighbours that store them.

    Its width then follows from the weights' width.
    """
    outputs = zip(operator.writes, operator.parameters, strict=False)
    return (
        operator.kind is OperatorKind.LINEAR
        and operator.folds > 1
        and any(e.size * operator.folds != p.extents[-1].size for e, p in outputs)
    )


def _widths(model: Model) -> list[int]:
    """Sizes (hidden, inner, head and state widths) that one divisor of the model must divide."""
    widths = [model.hidden]
    for operator in (o for b in model.blocks for o in b.operators):
        written = () if _rounds_up(operator) else operator.writes
        extents = [
            *operator.reads,
            *written,
            *(e for p in operator.parameters for e in _width_extents(operator, p)),
        ]
        widths += [e.quantum for e in extents if e.dim is Dim.HEADS and e.quantum > 1]
        widths += [e.size for e in extents if e.dim in (Dim.HIDDEN, Dim.FFN) and e.size > 1]
        if operator.attention is not None:
            widths += [operator.attention.head_dim, operator.attention.value_dim]
        if operator.scan is not None:
            widths += [s for s in (operator.scan.head_dim, operator.scan.state) if s > 1]
    return widths


def largest_divisor(model: Model) -> int:
    """The largest power of two that divides all widths and leaves at least SMALLEST elements."""
    widths = _widths(model)
    common = gcd(*widths)
    divisor = 1
    while common % (2 * divisor) == 0 and min(widths) // (2 * divisor) >= SMALLEST:
        divisor *= 2
    return divisor


def _narrower_settings(model: Model, divisor: int, *, vocab: int) -> Settings:
    """Settings of the narrower model: fewer rotary factors, an image token in its vocabulary."""
    settings = model.settings
    if settings.image is not None:
        settings = replace(
            settings, image=replace(settings.image, token=min(settings.image.token, vocab - 1))
        )
    if not isinstance(settings.longer, LongRotary):
        return settings
    widths = {
        o.reads[0].quantum // divisor
        for b in model.blocks
        for o in b.operators
        if o.kind is OperatorKind.ROTARY
    }
    most_pairs = min((int(width * settings.rope_share) // 2 for width in widths), default=0)
    short, long = (
        factors[::divisor][:most_pairs] for factors in (settings.longer.short, settings.longer.long)
    )
    return replace(settings, longer=replace(settings.longer, short=short, long=long))


def _narrower_extent(extent: Extent, divisor: int, vocab: int) -> Extent:
    """An extent with its width divided, or its vocabulary limited."""
    if extent.dim is Dim.VOCAB:
        return replace(extent, size=min(extent.size, vocab), quantum=1)
    if extent.dim is Dim.HEADS and extent.quantum > 1:
        return replace(extent, size=extent.size // divisor, quantum=extent.quantum // divisor)
    if extent.dim in (Dim.HIDDEN, Dim.FFN) and extent.size > 1:
        return replace(extent, size=extent.size // divisor)
    return extent


def _narrower_parameter(
    operator: Operator, parameter: Parameter, divisor: int, vocab: int
) -> Parameter:
    """A parameter with its widths divided."""
    widths = _width_extents(operator, parameter)
    return replace(
        parameter,
        extents=(
            *(_narrower_extent(e, divisor, vocab) for e in widths),
            *parameter.extents[len(widths) :],
        ),
    )


def _narrower_operator(operator: Operator, divisor: int, vocab: int) -> Operator:
    """An operator with its widths, head sizes and parameters divided."""
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
    parameters = tuple(
        _narrower_parameter(operator, p, divisor, vocab) for p in operator.parameters
    )
    writes = tuple(_narrower_extent(e, divisor, vocab) for e in operator.writes)
    if _rounds_up(operator):
        pairs = zip(writes, parameters, strict=False)
        writes = tuple(replace(e, size=-(-p.extents[-1].size // operator.folds)) for e, p in pairs)
    return replace(
        operator,
        reads=tuple(_narrower_extent(e, divisor, vocab) for e in operator.reads),
        writes=writes,
        parameters=parameters,
        attention=attention,
        scan=scan,
    )


def _narrower_block(block: Block, divisor: int, vocab: int) -> Block:
    """A block with its operators' widths divided."""
    return replace(
        block, operators=tuple(_narrower_operator(o, divisor, vocab) for o in block.operators)
    )
