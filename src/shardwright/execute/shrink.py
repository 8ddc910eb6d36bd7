"""A small model of the same structure: every width divided, every count (layers, heads, experts) kept."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from shardwright.model.block import Block
from shardwright.model.graph import Model
from shardwright.model.operator import Operator
from shardwright.model.tensor import Dim, Extent, Parameter

SMALLEST = 4
"""Least width that a head keeps: rotary positions turn pairs."""
VOCAB = 64
"""Most rows of a small vocabulary."""


def shrink(model: Model) -> Model:
    """`model` with hidden, feed-forward, head and latent widths divided by one number, and a small vocabulary.

    The number is the largest power of two that divides all of them and leaves heads of at least SMALLEST elements. Chunks of scans keep
    their length. A plan of the model is one of the small model too: cuts are in runs, which keep their number where it matters (heads,
    experts).
    """
    divisor = _divisor(model)
    blocks = tuple(_block(b, divisor) for b in model.blocks)
    return replace(model, blocks=blocks, hidden=model.hidden // divisor, vocab=min(model.vocab, VOCAB))


def _widths(model: Model) -> list[int]:
    found = [model.hidden]
    for operator in (o for b in model.blocks for o in b.operators):
        extents = [*operator.reads, *operator.writes, *(e for p in operator.parameters for e in p.extents)]
        found += [e.quantum for e in extents if e.dim is Dim.HEADS and e.quantum > 1]
        found += [e.size for e in extents if e.dim in (Dim.HIDDEN, Dim.FFN) and e.size > 1]
        if operator.attention is not None:
            found += [operator.attention.head_dim, operator.attention.value_dim]
        if operator.scan is not None:
            found += [s for s in (operator.scan.head_dim, operator.scan.state) if s > 1]
    return found


def _divisor(model: Model) -> int:
    widths = _widths(model)
    common = gcd(*widths)
    divisor = 1
    while common % (2 * divisor) == 0 and min(widths) // (2 * divisor) >= SMALLEST:
        divisor *= 2
    return divisor


def _extent(extent: Extent, divisor: int) -> Extent:
    if extent.dim is Dim.VOCAB:
        return replace(extent, size=min(extent.size, VOCAB), quantum=1)
    if extent.dim is Dim.HEADS and extent.quantum > 1:
        return replace(extent, size=extent.size // divisor, quantum=extent.quantum // divisor)
    if extent.dim in (Dim.HIDDEN, Dim.FFN) and extent.size > 1:
        return replace(extent, size=extent.size // divisor)
    return extent


def _parameter(parameter: Parameter, divisor: int) -> Parameter:
    return replace(parameter, extents=tuple(_extent(e, divisor) for e in parameter.extents))


def _operator(operator: Operator, divisor: int) -> Operator:
    attention, scan = operator.attention, operator.scan
    if attention is not None:
        attention = replace(attention, head_dim=attention.head_dim // divisor, value_dim=attention.value_dim // divisor)
    if scan is not None:
        scan = replace(
            scan,
            head_dim=scan.head_dim // divisor if scan.head_dim > 1 else 1,
            state=scan.state // divisor if scan.state > 1 else 1,
        )
    return replace(
        operator,
        reads=tuple(_extent(e, divisor) for e in operator.reads),
        writes=tuple(_extent(e, divisor) for e in operator.writes),
        parameters=tuple(_parameter(p, divisor) for p in operator.parameters),
        attention=attention,
        scan=scan,
    )


def _block(block: Block, divisor: int) -> Block:
    return replace(block, operators=tuple(_operator(o, divisor) for o in block.operators))
