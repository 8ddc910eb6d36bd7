"""Learning rate of each step: linear warm-up, then constant, linear or cosine decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi
from types import MappingProxyType
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

CURVES: Final[Mapping[str, Callable[[float], float]]] = MappingProxyType(
    {
        "constant": lambda _: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + cos(pi * done)),
    }
)
"""Share of the way from the minimum to the peak, by the share of steps after the warm-up that are
done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """Learning-rate curve: the share of the peak learning rate that each step uses.

    Args:
        name: one of `CURVES`.
        warmup: steps of linear warm-up; the last one has the peak.
        steps: number of steps after which the minimum is reached.
        least: the minimum, as a share of the peak.

    With a warm-up of 10 of 110 steps, a cosine and a least of 0.1, steps 1, 10, 60 and 110 have
    0.1, 1, 0.55 and 0.1 of the peak.
    """

    name: str = "constant"
    warmup: int = 0
    steps: int = 0
    least: float = 0.0

    def share(self, step: int) -> float:
        """Learning rate at a step over the peak's: warm-up, then the curve down to the minimum."""
        if step <= self.warmup:
            return step / self.warmup
        done = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.least + (1.0 - self.least) * CURVES[self.name](done)


CONSTANT: Final = RateCurve()
"""The same rate at every step."""
