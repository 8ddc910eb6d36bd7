"""Symbolic sizes of a lowered block: products of dims cut by axes, evaluated on degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass

Degrees = Mapping[str, IntArray]
"""Degree of each axis, and the lane's samples a microbatch under ``mbs``; arrays of one shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Largest part of runs x quantum elements that `axes` cut.

    quantum x ceil(runs / product of the degrees).

    Args:
        once: where parts have copies, as there are more parts than runs, each element counts once:
            2 heads of 128 for 4 readers are 64 each.
    """

    runs: int
    quantum: int = 1
    axes: tuple[str, ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A symbolic size: a product of constants, variables and factors, divided and scaled.

    times x product of `scale` variables x product of factors, divided by `divisor`, times `percent`
    / 100.

    Each quotient is rounded up, once the product is complete; at most one factor of a product has a
    divisor or a percentage.
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
        """This size multiplied by `times`."""
        return replace(self, times=self.times * times)

    def divided(self, divisor: int) -> Size:
        """This size, divided by `divisor` (in place of an earlier one) and rounded up once."""
        return replace(self, divisor=divisor)

    def uneven(self, percent: int) -> Size:
        """This size times `percent` percent, in place of any percentage before, rounded up."""
        return replace(self, percent=percent)


def evaluate(size: Size, degrees: Degrees) -> IntArray:
    """Value of a symbolic size for every entry of the degree arrays (exact integers)."""
    elements = _product(size, degrees)
    if size.divisor != 1:
        elements = -(-elements // size.divisor)
    return elements if size.percent == 100 else -(-elements * size.percent // 100)


def _product(size: Size, degrees: Degrees) -> IntArray:
    """`size` without its divisor and percentage, for every entry of the degree arrays."""
    constant = size.times
    product: IntArray | None = None
    for name in size.scale:
        product = degrees[name] if product is None else product * degrees[name]
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
        product = part if product is None else product * part
    if product is None:
        return np.zeros(degrees["mbs"].shape, dtype=np.int64) + constant
    return product if constant == 1 else product * constant


def evaluate_sum(sizes: tuple[Size, ...], degrees: Degrees) -> IntArray:
    """Sum of several symbolic sizes for every entry of the degree arrays.

    Such as a fused projection's outputs.
    """
    total = evaluate(sizes[0], degrees)
    for size in sizes[1:]:
        total = total + evaluate(size, degrees)
    return total
