"""Sizes of a lowered block: products of stretches of dims, each cut by some axes, evaluated on
arrays of degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazy_dataclass import dataclass

Degrees = Mapping[str, IntArray]
"""Degree of each axis, and the lane's samples a microbatch under ``mbs``; arrays of one shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """quantum x ceil(runs / product of the degrees of `axes`): the largest part of a stretch of
    runs x quantum elements.

    once: where parts have copies, as there are more than runs, each element counts once: 2 heads of
        128 for 4 readers are 64 each.
    """

    runs: int
    quantum: int = 1
    axes: tuple[str, ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """times x product of `scale` variables x product of factors, divided by `divisor`, of it so
    many percent.

    Each rounded up, once all is multiplied; in at most one part of a product.
    """

    times: int = 1
    scale: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    divisor: int = 1
    percent: int = 100

    def __mul__(self, other: Size) -> Size:
        return Size(
            times=self.times * other.times,
            scale=self.scale + other.scale,
            factors=self.factors + other.factors,
            divisor=self.divisor * other.divisor,
            percent=self.percent * other.percent // 100,
        )

    def scaled(self, times: int) -> Size:
        """This size `times` times."""
        return replace(self, times=self.times * times)

    def divided(self, divisor: int) -> Size:
        """This size divided by `divisor`, rounded up once for the whole of it."""
        return replace(self, divisor=divisor)

    def uneven(self, percent: int) -> Size:
        """`percent` of this size."""
        return replace(self, percent=percent)


def evaluate(size: Size, degrees: Degrees) -> IntArray:
    """`size` in elements for every entry of the degree arrays (exact integers)."""
    whole = _whole(size, degrees)
    if size.divisor != 1:
        whole = -(-whole // size.divisor)
    return whole if size.percent == 100 else -(-whole * size.percent // 100)


def _whole(size: Size, degrees: Degrees) -> IntArray:
    constant = size.times
    result: IntArray | None = None
    for name in size.scale:
        result = degrees[name] if result is None else result * degrees[name]
    for factor in size.factors:
        present = [degrees[a] for a in factor.axes]
        if not present:
            constant *= factor.runs * factor.quantum
            continue
        cut = present[0]
        for degree in present[1:]:
            cut = cut * degree
        part = -(-factor.runs // cut)
        if factor.quantum != 1:
            part = part * factor.quantum
        if factor.once:
            part = np.where(cut > factor.runs, -(-factor.runs * factor.quantum // cut), part)
        result = part if result is None else result * part
    if result is None:
        return np.zeros(degrees["mbs"].shape, dtype=np.int64) + constant
    return result if constant == 1 else result * constant


def evaluate_sum(sizes: tuple[Size, ...], degrees: Degrees) -> IntArray:
    """Sum of several sizes (a fused projection's outputs)."""
    total = evaluate(sizes[0], degrees)
    for size in sizes[1:]:
        total = total + evaluate(size, degrees)
    return total
