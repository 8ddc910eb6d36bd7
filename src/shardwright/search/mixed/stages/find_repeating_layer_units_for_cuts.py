"""Places where pipelines of mixed plans may be cut between layers.

A model's layers are some first ones, equal units, and some last ones.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.search.joint.model_as_chain_of_one_layer_positions import chain_of

LAYER, BEFORE, AFTER = range(3)
"""Parts of a stage: one unit of layers, all before the first unit, all after the last unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """The layers of a model as first layers, equal units, and last layers.

    Stages hold whole units, one or more. The `first` layers are on the first stage, `units` units
    of `period` layers follow, and the `last` layers are on the last stage.
    """

    first: int
    period: int
    units: int
    last: int

    def layers(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Layers of each pipeline stage, from the number of units of each."""
        layers = [size * self.period for size in sizes]
        layers[0] += self.first
        layers[-1] += self.last
        return tuple(layers)

    def text(self) -> str:
        """Describe the allowed cuts in words; empty = any cut."""
        phrases = [f"behind every {self.period} layers"] if self.period > 1 else []
        phrases += (
            [f"the first {self.first} on the first stage and never run again"] if self.first else []
        )
        phrases += (
            [f"the last {self.last} on the last one and never run again"] if self.last else []
        )
        return ", ".join(phrases)


@lru_cache(maxsize=64)
def pattern_of(model: Model) -> LayerPattern:
    """Layer pattern of a model with the smallest sum of period and larger end.

    Smallest: the largest end plus the period. A few dense layers before many with experts become
    the first layers; alternating layers become a unit. Among equal patterns: most units, then
    shortest ends.
    """
    inner = chain_of(model).inner
    patterns = [
        pattern
        for period in range(1, len(inner) + 1)
        for pattern in _patterns_of_period(inner, period)
    ]
    return min(
        patterns,
        key=lambda pattern: (
            max(pattern.first, pattern.last) + pattern.period,
            -pattern.units,
            pattern.first + pattern.last,
        ),
    )


def _patterns_of_period(inner: IntArray, period: int) -> list[LayerPattern]:
    """Every longest run of equal units of `period` layers, as patterns."""
    total, patterns = len(inner), []
    same = [bool((inner[at] == inner[at + period]).all()) for at in range(total - period)]
    at = 0
    while at + period <= total:
        run = sum(1 for _ in takewhile(bool, same[at:]))
        units = run // period + 1
        patterns.append(
            LayerPattern(first=at, period=period, units=units, last=total - at - units * period)
        )
        at += run + 1
    return patterns


def block_counts_of_parts(model: Model) -> IntArray:
    """(3, blocks) times each block is in one unit of layers, in all before units, in all after."""
    chain, pattern = chain_of(model), pattern_of(model)
    end = pattern.first + pattern.units * pattern.period
    units = chain.layers[pattern.first : pattern.first + pattern.period]
    before = (*chain.before, *(block for layer in chain.layers[: pattern.first] for block in layer))
    after = (*(block for layer in chain.layers[end:] for block in layer), *chain.after)
    counts = np.zeros((3, len(model.blocks)), dtype=np.int64)
    for part, blocks in (
        (LAYER, tuple(block for layer in units for block in layer)),
        (BEFORE, before),
        (AFTER, after),
    ):
        np.add.at(counts[part], list(blocks), 1)
    return counts
