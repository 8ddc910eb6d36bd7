"""Find compositions at step-time limits just above the bound, frame by frame, and queue them for
simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from typing import NamedTuple

from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.frames import Frame
from shardwright.search.mixed.pipelines.priced_pipelines import Market, Values
from shardwright.search.mixed.pipelines.search_tasks import Bench, Stock
from shardwright.search.mixed.plans.replica_counts import compositions, dealt
from shardwright.search.mixed.plans.simulated_plans import (
    Lanes,
    MixedCandidate,
    Standing,
    candidate,
)
from shardwright.search.mixed.stages.frame_terms import first_frames, replica_edges

RISE, COARSEST = 0.01, 0.04
"""Share of a limit by which the next is later; at most, where frames stay closed."""
WORTH = 0.995
"""Limits nearer to the best are not worth a look."""
LEVELS = 3
"""Limits at which compositions of a frame are looked for, from the first that leaves any."""
NEARLY = 0.01
"""Share of a limit to which that one is found."""
PAIRS = 60
"""Compositions of a frame by a limit."""
FEW = 150_000
"""Number of shapes up to which all requested limits are tried; with twice as many shapes, half of
them."""
EARLY_RISES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Shares of a market's first limit by which the limits of its undivided frame are later, at which
its first compositions are looked for."""
LANES = 2
"""Shapes of a composition at most on two pools; one more for each further pool."""
OTHERS = 4
"""Search and simulation budget of plans without a sharding lane, as a multiple of that of plans
with one, if both exist."""
AT_ONCE = 4
"""Limits of a market that are looked at at once, whatever the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A frame of a market whose compositions by a limit are looked for.

    Args:
        market: its place on the bench, with some options.
        turn: of the frame.
        step: share of the limit by which the next is later where prices close this one.
        left: limits at which compositions are looked for.
        values: what is known of its shapes.
        latest_s: a limit at which the frame is given up if prices close it there too; 0 = none.
    """

    market: int
    options: Options
    turn: int
    frame: Frame
    limit_s: float
    step: float
    left: int
    values: Values
    latest_s: float = 0.0

    @property
    def rank(self) -> tuple[float, int]:
        """The smallest limit first."""
        return self.limit_s, self.turn


class Seen(NamedTuple):
    """A frame's shape values at a limit, and compositions; None = no plan meets the limit. shut:
    nor does one meet `latest_s`.
    """

    values: Values
    found: list[tuple[Lanes, MixedCandidate | None]] | None
    shut: bool = False


def looked(stock: Stock, look: Look) -> Seen:
    """Whether prices close a frame by a limit, and else compositions of it."""
    market = stock.markets[look.market]
    dual, values = market.priced(look.frame, look.limit_s, start=look.values)
    if dual.samples < market.batch:
        shut = (
            look.latest_s > 0 and market.priced(look.frame, look.latest_s)[0].samples < market.batch
        )
        return Seen(values, None, shut=shut)
    pools = market.ground.table.pools
    dual, values = market.priced(look.frame, look.limit_s, start=values, thorough=True)
    lanes, node = max(LANES, len(pools)), max(pool.node for pool in pools)
    found = [
        dealt(one, market.shapes, batch=market.batch)
        for grain in dict.fromkeys((node, 1))
        for one in compositions(
            market, dual, values, replicas=look.frame.replicas, lanes=lanes, grain=grain, most=PAIRS
        )
    ]
    distinct: dict[tuple[tuple[int, int, int], ...], Lanes] = {}
    for one in found:
        distinct.setdefault(tuple(sorted(one)), one)
    return Seen(
        values,
        [
            (one, candidate(market, one, look.limit_s, look.options))
            for one in distinct.values()
            if one
        ],
    )


@dataclass(slots=True)
class Composing:
    """Compositions of a market that are still to be looked for, frame by frame.

    Args:
        waiting: a heap. A frame that prices close at a limit waits for one that is later by its
            step, twice as far each time; one that they do not waits for the next level.
        left: limits at which compositions are still looked for in this round.
        under_way: looks, each of which may be at such a limit.
        share: part of the looks of a round that it has.
        undivided: the frame that the waiting ones are parts of, at the first limit at which prices
            no longer close it; None = they close it at every limit.
    """

    market: Market
    options: Options
    waiting: list[tuple[tuple[float, int], Look]]
    undivided: Look | None = None
    left: int = 0
    under_way: int = 0
    share: int = 1

    def next(self, standing: Standing) -> Look | None:
        """The smallest limit, taken from the heap; None = there is none to be looked at now."""
        if (
            self.under_way >= min(self.left, AT_ONCE)
            or not self.waiting
            or self.waiting[0][0][0] >= standing.best_s * WORTH
        ):
            return None
        self.under_way += 1
        return heappop(self.waiting)[1]

    def take(self, standing: Standing, look: Look, seen: Seen) -> None:
        """Let compositions wait for their simulation, and the frame for another limit."""
        self.under_way -= 1
        known = replace(look, values=seen.values, latest_s=0.0)
        if seen.shut:
            return
        if seen.found is None:
            self._wait(
                replace(
                    known, limit_s=look.limit_s * (1 + look.step), step=min(2 * look.step, COARSEST)
                )
            )
            return
        self.left -= 1
        for lanes, one in seen.found:
            standing.wait(lanes, one, self.options)
        if look.left > 1:
            self._wait(replace(known, limit_s=look.limit_s * (1 + RISE), left=look.left - 1))

    def _wait(self, look: Look) -> None:
        heappush(self.waiting, (look.rank, look))


def composing_in_turn(
    standing: Standing, bench: Bench, markets: Sequence[tuple[Options, Market]]
) -> Iterator[list[Composing]]:
    """Frames of the markets to compose plans of, in two groups: frames in which no lane shards, and
    the others. Each frame begins at the first limit at which prices no longer close it.

    A group's first limits are found when the group is asked for: plans of the first group can be
    simulated before work on the second begins.
    """
    most = min(standing.best_s * WORTH, LONGEST_STEP_S)
    # Where no plan is known that a limit could be too late for, frames that memory closes would
    # wait for one later limit after another.
    latest_s = most if standing.best is None else 0.0
    for sharded in (False, True):
        asked = [
            (options, First(market=bench.place(market), frame=frame, most=most))
            for options, market in markets
            for frame in whole_frames(market)
            if frame.sharded == sharded
        ]
        if asked:
            firsts = bench.map(_first_of, [first for _, first in asked])
            yield [
                _begun(bench, options, first, *found, latest_s=latest_s)
                for (options, first), found in zip(asked, firsts, strict=True)
            ]


def composing_of(
    standing: Standing, bench: Bench, markets: Sequence[tuple[Options, Market]]
) -> list[Composing]:
    """All frames of `composing_in_turn`, market by market."""
    groups = composing_in_turn(standing, bench, markets)
    return in_bench_order(bench, [one for group in groups for one in group])


def in_bench_order(bench: Bench, composing: Sequence[Composing]) -> list[Composing]:
    """Frames market by market, in the order of the bench."""
    return sorted(composing, key=lambda one: bench.place(one.market))


def look_at_limits(
    standing: Standing, bench: Bench, composing: Sequence[Composing], *, most: int
) -> None:
    """Let compositions wait for their simulation, at so many limits of each market at most, the
    smallest first.
    """
    for one in composing:
        one.left = max(most * FEW // max(len(one.market.shapes), FEW) // one.share, 1)
    begun = deque[tuple[Composing, Look]]()

    def ask() -> Look | None:
        for one in sorted(composing, key=lambda one: one.under_way):
            if (look := one.next(standing)) is not None:
                begun.append((one, look))
                return look
        return None

    more = sum(one.left for one in composing)
    for seen in bench.flow(
        looked, lambda: None if standing.ends() else ask(), size=AT_ONCE * len(composing), more=more
    ):
        one, look = begun.popleft()
        one.take(standing, look, seen)


def look_at_undivided(
    standing: Standing,
    bench: Bench,
    composing: Sequence[Composing],
    *,
    rise: float,
    latest_s: float,
) -> None:
    """Let compositions of every market's undivided frame wait for their simulation.

    One look a market costs as much as one at a small part of the frame, and finds plans a few
    percent from the best: the search has a plan early, and later looks end at its time.

    Args:
        rise: share of the market's first limit by which the limit of this look is later.
        latest_s: seconds; a limit from there on is not worth a look.
    """
    early = deque[tuple[Composing, Look]]()
    for one in composing:
        if one.undivided is not None:
            look = replace(one.undivided, limit_s=one.undivided.limit_s * (1 + rise))
            if look.limit_s < latest_s:
                early.append((one, look))
    begun = deque[tuple[Composing, Look]]()

    def ask() -> Look | None:
        if standing.ends() or not early:
            return None
        begun.append(early.popleft())
        return begun[-1][1]

    for seen in bench.flow(looked, ask, size=AT_ONCE, more=len(early)):
        one, look = begun.popleft()
        for lanes, plan in seen.found or ():
            standing.wait(lanes, plan, look.options)
        if seen.shut:
            # Prices that close the whole frame at the latest limit close each of its parts.
            one.undivided = None
            one.waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """A frame whose first limit is asked for, its market's place on the bench, and the latest
    limit.
    """

    market: int
    frame: Frame
    most: float


def _first_of(stock: Stock, asked: First) -> tuple[float, Values | None]:
    market = stock.markets[asked.market]
    return first_limit(market, asked.frame, most=asked.most)


def _begun(
    bench: Bench,
    options: Options,
    asked: First,
    limit_s: float,
    values: Values | None,
    *,
    latest_s: float,
) -> Composing:
    market, waiting, undivided = bench.stock.markets[asked.market], [], None
    if values is not None:
        undivided = Look(
            market=asked.market,
            options=options,
            turn=0,
            frame=asked.frame,
            limit_s=limit_s,
            step=RISE,
            left=LEVELS,
            values=values,
            latest_s=latest_s,
        )
        parts = enumerate(composed_frames(asked.frame))
        looks = [replace(undivided, turn=turn, frame=frame) for turn, frame in parts]
        waiting = [(look.rank, look) for look in looks]
    share = OTHERS if asked.frame.sharded and not first_frames(market.ground)[0].sharded else 1
    return Composing(
        market=market, options=options, waiting=waiting, undivided=undivided, share=share
    )


def composed_frames(whole: Frame) -> list[Frame]:
    """Frames that compositions are asked of:
    replicas from one power of two to the next, in halves.
    """
    most = whole.replicas[1]
    edges = [*(edge for edge in replica_edges(most) if edge <= most), most + 1]
    return [replace(whole, replicas=(low, high - 1)) for low, high in pairwise(edges)]


def whole_frames(market: Market) -> tuple[Frame, ...]:
    """The frames of plans that are composed: of some of the pools those alone in which no lane
    shards, unless all do. Plans of one lane are looked at one by one.
    """
    frames = tuple(frame for frame in first_frames(market.ground) if not frame.alone)
    return frames if market.is_whole else frames[:1]


def whole_frame(market: Market, *, sharded: bool = False, alone: bool = False) -> Frame:
    """The frame of any number of replicas."""
    ground = market.ground
    return Frame(
        replicas=(1, ground.most_replicas),
        tp=ground.least_tp,
        nodes=(0.0, ground.nodes),
        sharded=sharded,
        alone=alone,
    )


def first_limit(market: Market, frame: Frame, *, most: float) -> tuple[float, Values | None]:
    """The limit, to a percent, at which prices no longer close a frame, and what is known of its
    shapes there.

    Args:
        most: where they close it there too, it is inf and nothing is known.
    """
    dual, values = market.priced(frame, most)
    if dual.samples < market.batch:
        return inf, None
    low, high = 0.0, most
    while high - low > NEARLY * high:
        # From above by halves, then by the middle.
        middle = (low + high) / 2 if low else high / 2
        dual, found = market.priced(frame, middle, start=values)
        if dual.samples >= market.batch:
            high, values = middle, found
        else:
            low = middle
    return high, values
