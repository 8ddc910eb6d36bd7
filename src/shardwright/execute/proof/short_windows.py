"""Shorter attention windows, scan chunks and selected key blocks for short test sequences.

Short sequences then exceed them as long sequences exceed the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortReach:
    """Limits for the blocks of one sequence: windows of `window` keys, chunks of `chunk` tokens.

    They apply where the model's own are longer and below `beyond` tokens; others stay.
    """

    window: int
    chunk: int
    beyond: float = float("inf")


def reach_of(tokens: int, *, whole: int) -> ShortReach:
    """Window and chunk limit 3/8 x `tokens`, for operators whose own is less than `whole`.

    No cut into equal parts ends there.
    """
    least = max(1, 3 * tokens // 8)
    return ShortReach(window=least, chunk=least, beyond=whole)


def with_short_windows(model: Model, reaches: Mapping[str, ShortReach]) -> Model:
    """Model with windows and chunks shortened to the reach of each block's sequence."""
    blocks = []
    for block in model.blocks:
        reach = reaches.get(block.sequence)
        operators = (
            block.operators
            if reach is None
            else tuple(_short_operator(operator, reach) for operator in block.operators)
        )
        blocks.append(replace(block, operators=operators))
    return replace(model, blocks=tuple(blocks))


def _short_operator(operator: Operator, reach: ShortReach) -> Operator:
    """An operator with its window, scan chunk and selected key blocks limited."""
    attention, scan = operator.attention, operator.scan
    if attention is not None and reach.window < attention.window < reach.beyond:
        attention = replace(attention, window=reach.window)
    if scan is not None and reach.chunk < scan.chunk < reach.beyond:
        scan = replace(scan, chunk=reach.chunk)
    operator = _fewer_key_blocks(operator, reach)
    return (
        operator
        if attention is operator.attention and scan is operator.scan
        else replace(operator, attention=attention, scan=scan)
    )


def _fewer_key_blocks(operator: Operator, reach: ShortReach) -> Operator:
    """An operator with fewer, smaller selected key blocks, if its own exceed the window limit."""
    choice = operator.choice
    if choice is None or not reach.window < choice.size * choice.count < reach.beyond:
        return operator
    count = min(choice.count, reach.window)
    shorter = replace(
        choice, size=max(1, reach.window // count), count=count, local=min(choice.local, count)
    )
    is_indexer = operator.kind is OperatorKind.INDEX
    return replace(
        operator,
        choice=shorter,
        writes=(replace(operator.writes[0], size=choice.heads * count),)
        if is_indexer
        else operator.writes,
    )
