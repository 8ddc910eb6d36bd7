"""Places where pipelines of mixed plans may be cut: a model's layers as some first ones, equal
units, and some last ones.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.search.joint.layer_chain import chain_of

LAYER, BEFORE, AFTER = range(3)
"""Parts of a stage: one of its units, what stands before the first unit of the model, what stands
behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The layers of a chain: `first` ones that stand on the first stage, `units` of `period` layers
    that are alike, `last` ones that stand on the last stage. Stages hold whole units, one or more.
    """

    first: int
    period: int
    units: int
    last: int

    def layers(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Layers of each stage of a pipeline, from its units."""
        found = [size * self.period for size in sizes]
        found[0] += self.first
        found[-1] += self.last
        return tuple(found)

    def text(self) -> str:
        """The allowed cuts in words; empty = any."""
        said = [f"behind every {self.period} layers"] if self.period > 1 else []
        said += (
            [f"the first {self.first} on the first stage and never run again"] if self.first else []
        )
        said += [f"the last {self.last} on the last one and never run again"] if self.last else []
        return ", ".join(said)


@lru_cache(maxsize=64)
def pattern_of(model: Model) -> Pattern:
    """The pattern under which the least that an end of a pipeline must hold is least: of a few
    first dense layers before many with experts those first ones, of layers in turns the turn. Of
    several the one of most units, then of the shortest ends.
    """
    inner = chain_of(model).inner
    found = [one for period in range(1, len(inner) + 1) for one in _of_period(inner, period)]
    return min(
        found,
        key=lambda one: (max(one.first, one.last) + one.period, -one.units, one.first + one.last),
    )


def _of_period(inner: IntArray, period: int) -> list[Pattern]:
    """Every longest run of equal units of so many layers."""
    total, found = len(inner), []
    same = [bool((inner[at] == inner[at + period]).all()) for at in range(total - period)]
    at = 0
    while at + period <= total:
        run = sum(1 for _ in takewhile(bool, same[at:]))
        units = run // period + 1
        found.append(
            Pattern(first=at, period=period, units=units, last=total - at - units * period)
        )
        at += run + 1
    return found


def parts_of(model: Model) -> IntArray:
    """(parts, blocks) how often each block of the model is in each part."""
    chain, pattern = chain_of(model), pattern_of(model)
    end = pattern.first + pattern.units * pattern.period
    units = chain.layers[pattern.first : pattern.first + pattern.period]
    before = (*chain.before, *(block for layer in chain.layers[: pattern.first] for block in layer))
    after = (*(block for layer in chain.layers[end:] for block in layer), *chain.after)
    counts = np.zeros((3, len(model.blocks)), dtype=np.int64)
    for part, some in (
        (LAYER, tuple(block for layer in units for block in layer)),
        (BEFORE, before),
        (AFTER, after),
    ):
        np.add.at(counts[part], list(some), 1)
    return counts
