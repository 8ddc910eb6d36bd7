"""What a selective recompute policy keeps beside a block's input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind

_ENDS = (OperatorClass.EMBED, OperatorClass.HEAD)


def saved_products(operators: Iterable[Operator]) -> Mapping[str, tuple[bool, ...]] | None:
    """Which outputs of each linear operator a per-operator policy keeps: the first matrix product of the block, the third, and so on.

    A fused projection counts as one product for each of its outputs. Grouped products are not kept. None for an embedding or a head:
    they are outside the checkpoint.

    Source: torchtitan, distributed/activation_checkpoint.py (`mm_recompute`: every second aten.mm, counted
    from the first; which half is kept is from memory).
    """
    listed = tuple(operators)
    if any(o.klass in _ENDS for o in listed):
        return None
    kept: dict[str, tuple[bool, ...]] = {}
    seen = 0
    for operator in listed:
        if operator.kind is OperatorKind.LINEAR:
            kept[operator.name] = tuple((seen + place) % 2 == 0 for place in range(len(operator.writes)))
            seen += len(operator.writes)
    return kept
