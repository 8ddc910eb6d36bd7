"""Which rows of queries see which rows of keys, as rectangles that a fused kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, pairwise

from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, Interval, count


@dataclass(frozen=True, slots=True)
class Call:
    """Rows of queries and of keys: each query sees all of the keys or, where `causal`, of as many
    keys those up to its own row.
    """

    queries: Interval
    keys: Interval
    causal: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """Positions from `low` to `high`, from row `first` on."""

    low: int
    high: int
    first: int

    @property
    def end(self) -> int:
        return self.first + self.high - self.low


@lru_cache(maxsize=4096)
def calls(queries: Indices, keys: Indices, *, causal: bool) -> tuple[Call, ...]:
    """Calls that have every pair of a query and a key that it sees in exactly one of them, and no
    other pair.

    Positions are cut at each other's borders, so that two runs are of the same positions or share
    none. Runs of queries that meet the same rising runs of keys, one behind the other in both, are
    one diagonal; what a query sees beside its diagonal it sees wholly.

    Worked: queries at 0-1 and 6-7 see keys at 0-1, 6-7 and 2-5, in that order, in two calls: all
    queries the first four keys, causally, and the last two queries the last four keys, wholly.

    Args:
        queries, keys: positions in the order of their rows; runs in any order, each position once.
        causal: a query sees no later key; else it sees all.

    Left out: windows, and whatever else hides a key from a later query.
    """
    rows, columns = count(queries), count(keys)
    if not rows or not columns:
        return ()
    if not causal:
        return (Call((0, rows), (0, columns), False),)
    asking, asked = _cut(queries, keys), _cut(keys, queries)
    diagonals = list(_diagonals(asking, asked))
    found = [
        Call((asking[a].first, asking[b].end), (asked[m].first, asked[m + b - a].end), True)
        for a, b, m in diagonals
    ]
    inside = {i: range(m, m + i - a + 1) for a, b, m in diagonals for i in range(a, b + 1)}
    seen = [tuple(_seen(one, asked, inside.get(i, range(0)))) for i, one in enumerate(asking)]
    for slices, group in groupby(range(len(asking)), key=seen.__getitem__):
        alike = list(group)
        found += [
            Call((asking[alike[0]].first, asking[alike[-1]].end), one, False) for one in slices
        ]
    return tuple(found)


def _cut(runs: Indices, others: Indices) -> list[_Run]:
    """The runs, cut where one of the others begins or ends."""
    borders = sorted({border for other in others for border in other})
    found, first = [], 0
    for low, high in runs:
        ends = [low, *(border for border in borders if low < border < high), high]
        found += [_Run(a, b, first + a - low) for a, b in pairwise(ends) if a < b]
        first += high - low
    return found


def _diagonals(asking: list[_Run], asked: list[_Run]) -> Iterator[tuple[int, int, int]]:
    """(first run of queries, last one, first run of keys) of each diagonal; a single position is
    none, as it sees itself wholly.
    """
    places = {one.low: number for number, one in enumerate(asked)}
    begun: tuple[int, int] | None = None
    for i, one in enumerate(asking):
        place = places.get(one.low)
        if begun is not None and (place != begun[1] + i - begun[0] or one.low < asking[i - 1].high):
            yield begun[0], i - 1, begun[1]
            begun = None
        if (
            begun is None
            and place is not None
            and (one.high - one.low > 1 or _goes_on(asking, asked, i, place))
        ):
            begun = i, place
    if begun is not None:
        yield begun[0], len(asking) - 1, begun[1]


def _goes_on(asking: list[_Run], asked: list[_Run], i: int, place: int) -> bool:
    """The next runs of queries and of keys are of the same later positions."""
    if i + 1 == len(asking) or place + 1 == len(asked):
        return False
    return asking[i].high <= asking[i + 1].low == asked[place + 1].low


def _seen(one: _Run, asked: list[_Run], inside: range) -> Iterator[Interval]:
    """Rows of keys that all queries of a run see, in slices as long as can be, without the runs
    that are `inside` its diagonal.
    """
    begun: tuple[int, int] | None = None
    for number, other in enumerate(asked):
        if other.high - 1 > one.low or number in inside:
            continue
        if begun is not None and begun[1] == other.first:
            begun = begun[0], other.end
            continue
        if begun is not None:
            yield begun
        begun = other.first, other.end
    if begun is not None:
        yield begun
