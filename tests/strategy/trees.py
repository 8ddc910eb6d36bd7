"""Random split trees in which every device has something and no two devices share a part of a
gradient only partly.

Children of one cut differ only under cuts of tokens (b, s): two copies of an operator whose tokens
were cut differently would add up overlapping shares of one gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from hypothesis import strategies as st

from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.operator_split_tree import Split

Counts: TypeAlias = Mapping[Dim, int]
MAX_CUTS: Final = 3
_TOKENS: Final = (Dim.BATCH, Dim.SEQUENCE)
_WIDTHS: Final = (Dim.WIDTH, Dim.HEADS, Dim.FFN, Dim.VOCAB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tree, the dims that it cuts, and the distance from its first to its last device."""

    split: Split | None
    dims: frozenset[Dim]
    span: int


def _left(
    counts: Counts, dim: Dim, *, share: int, whole: int, zigzag: bool = False
) -> Counts | None:
    """What a part of `share` in `whole` has to cut further, at least; None if that is nothing. `t`
    is one with the width it stands for."""
    if dim is Dim.REPLICATE:
        return counts
    named = _WIDTHS if dim in _WIDTHS else (dim,)
    halves = 2 if zigzag else 1
    left = {d: counts[d] * share // (whole * halves) * halves for d in named if d in counts}
    return {**counts, **left} if min(left.values()) >= 1 else None


def _scaled(split: Split | None, factor: int) -> Split | None:
    """The tree with its devices `factor` times as far apart."""
    if split is None:
        return None
    step = (
        split.step * factor
        if isinstance(split.step, int)
        else tuple(s * factor for s in split.step)
    )
    return replace(
        split, step=step, children=tuple(_scaled(child, factor) for child in split.children)
    )


def _dims(split: Split | None) -> frozenset[Dim]:
    if split is None:
        return frozenset()
    return frozenset({split.dim}).union(*(_dims(child) for child in split.children))


def _divisors(number: int) -> list[int]:
    return [d for d in range(2, number + 1) if number % d == 0]


def cut_points(draw: st.DrawFn, length: int, parts: int) -> list[int]:
    """Where a list of so many things is cut in so many parts, none empty: each part leaves room for
    those behind it."""
    ends: list[int] = []
    for behind in range(parts - 1, 0, -1):
        ends.append(draw(st.integers((ends[-1] if ends else 0) + 1, length - behind)))
    return ends


def _equal(
    draw: st.DrawFn, dims: tuple[Dim, ...], leaves: int, counts: Counts, cuts: int
) -> Split | None:
    """Equal parts side by side or interleaved, or weighted parts with equal children; None where
    the drawn dim has not enough."""
    parts = leaves if cuts == 1 else draw(st.sampled_from(_divisors(leaves)))
    dim = draw(st.sampled_from(dims))
    zigzag = dim is Dim.SEQUENCE and draw(st.booleans())
    inner = leaves // parts
    if dim is not Dim.REPLICATE and draw(st.integers(0, 3)) == 0:
        weights = tuple(draw(st.lists(st.integers(1, 3), min_size=parts, max_size=parts)))
        left = _left(counts, dim, share=min(weights), whole=sum(weights), zigzag=zigzag)
        if left is None:
            return None
        child = _tree(draw, dims, inner, left, cuts - 1)
        return Split(
            dim=dim,
            parts=weights,
            step=tuple(i * inner for i in range(parts)),
            children=(child,) * parts,
            zigzag=zigzag,
        )
    left = _left(counts, dim, share=1, whole=parts, zigzag=zigzag)
    if left is None:
        return None
    child = _tree(draw, dims, inner, left, cuts - 1)
    if draw(st.booleans()):
        return Split(dim=dim, parts=parts, step=inner, children=(child,), zigzag=zigzag)
    return Split(dim=dim, parts=parts, step=1, children=(_scaled(child, parts),), zigzag=zigzag)


def _ragged(
    draw: st.DrawFn, dims: tuple[Dim, ...], leaves: int, counts: Counts, cuts: int
) -> Split | None:
    """Parts of samples or positions on unequal numbers of devices with trees of their own; None
    where there are not enough."""
    dim = draw(st.sampled_from([d for d in dims if d in _TOKENS]))
    ends = cut_points(draw, leaves, draw(st.integers(2, min(3, leaves))))
    sizes = [b - a for a, b in zip([0, *ends], [*ends, leaves], strict=True)]
    weights = tuple(draw(st.integers(1, 3)) for _ in sizes)
    zigzag = dim is Dim.SEQUENCE and draw(st.booleans())
    children: list[Split | None] = []
    for weight, size in zip(weights, sizes, strict=True):
        left = _left(counts, dim, share=weight, whole=sum(weights), zigzag=zigzag)
        if left is None:
            return None
        children.append(_tree(draw, dims, size, left, cuts - 1))
    return Split(dim=dim, parts=weights, step=(0, *ends), children=tuple(children), zigzag=zigzag)


def _tree(
    draw: st.DrawFn, dims: tuple[Dim, ...], leaves: int, counts: Counts, cuts: int
) -> Split | None:
    """A tree of at most `cuts` levels on exactly the devices 0 .. leaves - 1; copies where a drawn
    cut is not possible."""
    if leaves == 1:
        return None
    ragged = cuts > 1 and any(dim in _TOKENS for dim in dims) and draw(st.integers(0, 2)) == 0
    drawn = (_ragged if ragged else _equal)(draw, dims, leaves, counts, cuts)
    return drawn or Split(dim=Dim.REPLICATE, parts=leaves, step=1)


def draw_tree(
    draw: st.DrawFn, *, dims: tuple[Dim, ...], room: int, counts: Counts, whole: bool = False
) -> Shape:
    """A tree on some of `room` devices, perhaps with gaps between them; `whole`: on exactly all of
    them."""
    leaves = room if whole else draw(st.integers(1, room))
    split = _tree(draw, dims, leaves, counts, MAX_CUTS)
    stretch = draw(st.integers(1, (room - 1) // (leaves - 1))) if leaves > 1 else 1
    return Shape(split=_scaled(split, stretch), dims=_dims(split), span=(leaves - 1) * stretch)


def for_experts(draw: st.DrawFn, split: Split | None, counts: Counts) -> Split | None:
    """A tree of experts that serves the tokens its devices own: the outer cuts of `split`, below
    them experts or their width."""
    return _served(draw, split, counts, kept=draw(st.integers(0, MAX_CUTS)))


def _served(draw: st.DrawFn, split: Split | None, counts: Counts, *, kept: int) -> Split | None:
    if split is None:
        return None
    if kept:
        return replace(
            split,
            children=tuple(_served(draw, child, counts, kept=kept - 1) for child in split.children),
        )
    weights = split.parts if isinstance(split.parts, tuple) else (1,) * split.parts
    dim = draw(st.sampled_from((Dim.EXPERTS, Dim.FFN)))
    left = _left(counts, dim, share=min(weights), whole=sum(weights))
    if left is None:
        dim, left = Dim.REPLICATE, counts
    return replace(
        split,
        dim=dim,
        zigzag=False,
        children=tuple(_served(draw, child, left, kept=0) for child in split.children),
    )
