"""Tokens of each device of a split tree, as exact shares of the batch and the sequence."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, pairwise

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.plan.operator_split_tree import Split

Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """A set of tokens, as fractions of the batch and of the sequence.

    It is one interval of the batch and several of the sequence.
    """

    batch: Interval = (Fraction(0), Fraction(1))
    sequence: tuple[Interval, ...] = ((Fraction(0), Fraction(1)),)

    def inside(self, container: TokenPiece) -> bool:
        """True if every token of this piece is also in `container`."""
        return (
            container.batch[0] <= self.batch[0]
            and self.batch[1] <= container.batch[1]
            and all(
                any(low <= a and b <= high for low, high in container.sequence)
                for a, b in self.sequence
            )
        )


def cut_intervals(
    intervals: tuple[Interval, ...], shares: tuple[Fraction, ...], *, zigzag: bool = False
) -> list[tuple[Interval, ...]]:
    """Cut intervals, in order, into one part for each share; zigzag part i: pieces i and 2n-1-i."""
    if zigzag:
        halves = [share / 2 for share in shares]
        pieces = cut_intervals(intervals, (*halves, *reversed(halves)))
        return [merged_intervals((*pieces[i], *pieces[-1 - i])) for i in range(len(shares))]
    total = sum((high - low for low, high in intervals), Fraction(0))
    ends = [Fraction(0), *accumulate(share * total for share in shares)]
    parts = []
    for start, end in pairwise(ends):
        part: list[Interval] = []
        length_before = Fraction(0)
        for low, high in intervals:
            a, b = max(start, length_before), min(end, length_before + high - low)
            if a < b:
                part.append((low + a - length_before, low + b - length_before))
            length_before += high - low
        parts.append(tuple(part))
    return parts


def merged_intervals(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Join intervals that touch their predecessor in the list."""
    merged: list[Interval] = []
    for low, high in intervals:
        if merged and merged[-1][1] == low:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def device_tokens(
    split: Split | None, *, first_device: int = 0, region: TokenPiece | None = None
) -> Iterator[tuple[int, TokenPiece]]:
    """Yield (device, its part of batch and sequence as fractions) of each leaf, in tree order."""
    region = TokenPiece() if region is None else region
    if split is None:
        yield first_device, region
        return
    weights = split.parts if isinstance(split.parts, tuple) else (1,) * split.parts
    total = sum(weights)
    shares = tuple(Fraction(weight, total) for weight in weights)
    steps = (
        split.step
        if isinstance(split.step, tuple)
        else tuple(split.step * i for i in range(len(weights)))
    )
    children = split.children if isinstance(split.parts, tuple) else split.children * len(weights)
    if split.dim is Dim.BATCH:
        cuts = [
            TokenPiece(batch=part[0], sequence=region.sequence)
            for part in cut_intervals((region.batch,), shares)
        ]
    elif split.dim is Dim.SEQUENCE:
        cuts = [
            TokenPiece(batch=region.batch, sequence=part)
            for part in cut_intervals(region.sequence, shares, zigzag=split.zigzag)
        ]
    else:
        cuts = [region] * len(weights)
    for child, step, part in zip(children, steps, cuts, strict=True):
        yield from device_tokens(child, first_device=first_device + step, region=part)
