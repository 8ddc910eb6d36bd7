"""Sizes of the parts that a tree cuts whole things into."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.model.ir.tensor import Dim
from shardwright.strategy.plan.split import Split


def rounded(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """`total` things in shares of these weights: each its whole part, what is left to the largest
    remainders, ties to the first.
    """
    whole = sum(weights)
    sizes = [total * weight // whole for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in ranked[: total - sum(sizes)]:
        sizes[i] += 1
    return tuple(sizes)


def empty_dims(split: Split | None, counts: Mapping[Dim, int]) -> frozenset[Dim]:
    """Dims of which some device of the tree gets nothing.

    Args:
        counts: things to share of each dim (samples, tokens, heads, ..); dims that are not named
            are not looked at.
    """
    if split is None:
        return frozenset()
    if split.dim not in counts:
        return frozenset().union(*(empty_dims(child, counts) for child in split.children))
    total = counts[split.dim]
    # equal parts share one child; the smallest of them says whether anything becomes empty below
    sizes = (total // split.parts,) if isinstance(split.parts, int) else rounded(total, split.parts)
    if min(sizes) == 0:
        return frozenset({split.dim})
    return frozenset().union(
        *(
            empty_dims(child, {**counts, split.dim: size})
            for child, size in zip(split.children, sizes, strict=True)
        )
    )
