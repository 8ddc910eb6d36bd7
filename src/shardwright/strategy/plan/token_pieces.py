"""Which tokens each device of a tree works on, as exact shares of the batch and the sequence."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, pairwise

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor import Dim
from shardwright.strategy.plan.split import Split

Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """Samples and positions as shares of the whole: one interval of the batch, a list of intervals
    of the sequence.
    """

    batch: Interval = (Fraction(0), Fraction(1))
    sequence: tuple[Interval, ...] = ((Fraction(0), Fraction(1)),)

    def inside(self, other: TokenPiece) -> bool:
        """All of it lies in `other`."""
        return (
            other.batch[0] <= self.batch[0]
            and self.batch[1] <= other.batch[1]
            and all(
                any(low <= a and b <= high for low, high in other.sequence)
                for a, b in self.sequence
            )
        )


def cut(
    intervals: tuple[Interval, ...], shares: tuple[Fraction, ...], *, zigzag: bool = False
) -> list[tuple[Interval, ...]]:
    """A list of intervals cut in order into parts with these shares; zigzag gives part i the pieces
    i and 2n-1-i.
    """
    if zigzag:
        halves = [share / 2 for share in shares]
        pieces = cut(intervals, (*halves, *reversed(halves)))
        return [joined((*pieces[i], *pieces[-1 - i])) for i in range(len(shares))]
    total = sum((high - low for low, high in intervals), Fraction(0))
    ends = [Fraction(0), *accumulate(share * total for share in shares)]
    result = []
    for start, end in pairwise(ends):
        part: list[Interval] = []
        passed = Fraction(0)
        for low, high in intervals:
            a, b = max(start, passed), min(end, passed + high - low)
            if a < b:
                part.append((low + a - passed, low + b - passed))
            passed += high - low
        result.append(tuple(part))
    return result


def joined(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The same intervals, touching neighbours as one."""
    result: list[Interval] = []
    for low, high in intervals:
        if result and result[-1][1] == low:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return tuple(result)


def regions(
    split: Split | None, *, base: int = 0, region: TokenPiece | None = None
) -> Iterator[tuple[int, TokenPiece]]:
    """(device, its tokens) of every leaf, in tree order."""
    region = TokenPiece() if region is None else region
    if split is None:
        yield base, region
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
            for part in cut((region.batch,), shares)
        ]
    elif split.dim is Dim.SEQUENCE:
        cuts = [
            TokenPiece(batch=region.batch, sequence=part)
            for part in cut(region.sequence, shares, zigzag=split.zigzag)
        ]
    else:
        cuts = [region] * len(weights)
    for child, step, part in zip(children, steps, cuts, strict=True):
        yield from regions(child, base=base + step, region=part)
