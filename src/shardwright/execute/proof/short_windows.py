"""Windows, chunks of scans and selected blocks of keys that short sequences go beyond, as long ones
go beyond the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortReach:
    """Of the blocks of one sequence: `window` keys and `chunk` tokens at most, where the model's
    own are fewer than `beyond` tokens; longer ones keep nothing out, and stay.
    """

    window: int
    chunk: int
    beyond: float = float("inf")


def reach_of(tokens: int, *, whole: int) -> ShortReach:
    """For a sequence of `tokens` positions in place of `whole`: three eighths of them, which no cut
    into equal parts meets.
    """
    least = max(1, 3 * tokens // 8)
    return ShortReach(window=least, chunk=least, beyond=whole)


def short_reach(model: Model, reaches: Mapping[str, ShortReach]) -> Model:
    """`model` with windows and chunks as `reaches` says of each block's sequence; blocks of others
    stay.
    """
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
    """Blocks of fewer keys, and fewer of them, where an indexer selects some."""
    choice = operator.choice
    if choice is None or not reach.window < choice.size * choice.count < reach.beyond:
        return operator
    count = min(choice.count, reach.window)
    shorter = replace(
        choice, size=max(1, reach.window // count), count=count, local=min(choice.local, count)
    )
    index = operator.kind is OperatorKind.INDEX
    return replace(
        operator,
        choice=shorter,
        writes=(replace(operator.writes[0], size=choice.heads * count),)
        if index
        else operator.writes,
    )
