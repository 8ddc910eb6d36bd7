"""Sizes of the parts that a split tree cuts samples, tokens, heads and other counts into."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.operator_split_tree import Split


def proportional_parts(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Divide `total` into whole parts in proportion to `weights`, by largest remainder.

    Each part gets the floor of its share; the largest remainders get one more, ties to the first.
    """
    weight_sum = sum(weights)
    sizes = [total * weight // weight_sum for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % weight_sum))
    for i in ranked[: total - sum(sizes)]:
        sizes[i] += 1
    return tuple(sizes)


def empty_dims(split: Split | None, counts: Mapping[Dim, int]) -> frozenset[Dim]:
    """Dims of which a split tree leaves some device no unit, given the units `counts` of each.

    Args:
        counts: number to share of each dim (samples, tokens, heads, ..); dims not named are
            ignored.
    """
    if split is None:
        return frozenset()
    if split.dim not in counts:
        return frozenset().union(*(empty_dims(child, counts) for child in split.children))
    total = counts[split.dim]
    # equal parts share one child; the smallest of them says whether anything becomes empty below
    sizes = (
        (total // split.parts,)
        if isinstance(split.parts, int)
        else proportional_parts(total, split.parts)
    )
    if min(sizes) == 0:
        return frozenset({split.dim})
    return frozenset().union(
        *(
            empty_dims(child, {**counts, split.dim: size})
            for child, size in zip(split.children, sizes, strict=True)
        )
    )
