"""Key heads that several parts of the query heads read: where their gradients stay parts of a sum until the weight's gradient."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from shardwright.errors import StrategyError
from shardwright.model.operator import Operator, OperatorClass
from shardwright.model.tensor import Dim
from shardwright.program.cells import StageCells, cut_dims, image, token_box
from shardwright.program.layout import Box, Interval, intersection
from shardwright.program.stage_parts import StageParts

_Reader = tuple[Box, Interval, Interval]
"""Tokens, query heads, and key heads that they read, of a device."""


def require_alike(stages: tuple[tuple[StageParts, ...], ...]) -> None:
    """Raise where devices share a key head, and the core's query heads are not those of the projection.

    What a core returns for a shared key head is a part of a sum that stays where it is; it can only if the projection that made the head
    is cut as the core is.

    Raises:
        StrategyError: they are not cut alike (rule ``execute.heads``).
    """
    for segment in (s for lane in stages for stage in lane for s in stage.segments):
        for operator in segment.block.operators:
            shape = operator.attention
            if shape is None or shape.kv_heads == shape.heads or segment.operator:
                continue
            cores, makers = (list(_readers(segment.cells, operator, k)) for k in (operator.klass, OperatorClass.ATTN))
            if not (_shared(cores) or _shared(makers)):
                continue
            for core in cores:
                for maker in makers:
                    if _meet(core[0], maker[0]) and _overlap(core[2], maker[2]) and _overlap(core[1], maker[1]) and core[1] != maker[1]:
                        raise StrategyError(
                            f"{operator.name} shares key heads between devices, with other query heads than the projection of the keys",
                            hint="cut the core's heads as the attention class's, or by a number that divides the key heads",
                            rule="execute.heads",
                        )


def _readers(cells: StageCells, operator: Operator, klass: OperatorClass) -> Iterator[_Reader]:
    shape = operator.attention
    assert shape is not None
    for cell in cells.cells.get(klass, {}).values():
        way = cut_dims(cell, operator).get(Dim.HEADS, ())
        tokens = token_box(cell, samples=cells.samples, length=_LENGTH)
        yield tokens, image(way, shape.heads, shape.heads), image(way, shape.kv_heads, shape.heads)


_LENGTH = 4096
"""Positions that tell whether two devices share tokens."""


def _shared(readers: list[_Reader]) -> bool:
    return any(
        one[1] != other[1] and _overlap(one[2], other[2]) and _meet(one[0], other[0])
        for one, other in combinations(dict.fromkeys(readers), 2)
    )


def _overlap(one: Interval, other: Interval) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _meet(one: Box, other: Box) -> bool:
    return intersection(one, other) is not None
