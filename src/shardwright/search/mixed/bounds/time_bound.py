"""The bound of a mixed space: frames closed one by one by prices, those that stay open split."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from math import exp, floor, log, log1p

import numpy as np

from shardwright.lazy_dataclass import dataclass
from shardwright.search.frames import Dual, Frame
from shardwright.search.limit import Limit
from shardwright.search.mixed.pipelines.priced_pipelines import Market, Values, prices_of
from shardwright.search.mixed.pipelines.search_tasks import Bench, Stock
from shardwright.search.mixed.stages.frame_terms import Ground, first_frames, split

TESTS, FEWEST, SHAPES = 200, 32, 20_000_000
"""Frames that are tested at most, and at least, before the limit is lowered; shapes of all tests
together between them."""
WIDE_GAPS = (0.2, 0.1)
"""Gaps that are shown first, before the one that is asked for: each takes a fraction of the next
one's tests."""
FINE = 0.0005
"""From one limit of the grid to the next."""
FIRST = 16
"""Steps of the grid by which a limit is lowered first."""
AT_ONCE = 16
"""Frames that are tested at once, whatever the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """A frame of a market that may have no plan by a limit.

    Args:
        market: its place on the bench.
        start: what is known of its shapes there at no earlier a limit, or near by.
    """

    market: int
    frame: Frame
    limit_s: float
    start: Values | None


def tested(stock: Stock, asked: Pricing) -> tuple[Dual, Values | None]:
    """Prices of a frame, and what is known of its shapes where they do not close it."""
    market = stock.markets[asked.market]
    dual, values = market.priced(asked.frame, asked.limit_s, start=asked.start)
    return dual, None if dual.samples < market.batch else values


@dataclass(slots=True)
class Closing:
    """The frames of one market, as far as they are closed. All frames of a round are tested at one
    limit, wherever that is done.

    Args:
        closed: prices of the leaves that no plan of which ends by their limit.
        open: leaves in which one may, and what is known of their shapes there.
        tests: how often a frame was priced.
        clock: past it nothing more is closed.
    """

    market: Market
    bench: Bench
    closed: dict[Frame, Dual] = field(default_factory=dict)
    open: dict[Frame, Values | None] = field(default_factory=dict)
    tests: int = 0
    clock: Limit = field(default_factory=Limit)

    def close(self, limit_s: float, *, most: int) -> bool:
        """Close frames at a limit, and split those that stay open, in at most so many tests;
        whether all are closed.
        """
        # The widest first, so that no part of the space is split to the end before another is
        # begun.
        waiting: deque[tuple[Frame, Values | None]] = deque(
            (frame, None) for frame in first_frames(self.market.ground)
        )
        self.closed.clear()
        self.open.clear()
        begun, place, left = deque[Frame](), self.bench.place(self.market), most

        def ask() -> Pricing | None:
            nonlocal left
            if not waiting or not left or self.clock.passed():
                return None
            left -= 1
            frame, start = waiting.popleft()
            begun.append(frame)
            return Pricing(market=place, frame=frame, limit_s=limit_s, start=start)

        for dual, values in self.bench.flow(tested, ask, size=AT_ONCE, more=most):
            frame = begun.popleft()
            self.tests += 1
            if values is None:
                self.closed[frame] = dual
                continue
            parts = split(self.market.ground, frame)
            waiting.extend((part, values) for part in parts)
            if not parts:
                self.open[frame] = values
        if self.clock.stopped_at:
            return False
        self.open |= dict(waiting)
        return not self.open

    def closed_limit(self, limit_s: float) -> float:
        """The largest limit, up to `limit_s`, that was shown to close all frames; 0 where the clock
        stopped before one was.
        """
        most = min(max(SHAPES // len(self.market.shapes), FEWEST), TESTS)
        if not limit_s or self.close(limit_s, most=most):
            return limit_s
        return 0.0 if self.clock.stopped_at else self.lowered(limit_s)

    def lowered(self, limit_s: float) -> float:
        """Close what is open at a lower limit: the largest one, to FINE, that closes all, and
        return that limit.

        From the limit down by doubled steps, then by bisection. Only frames that are open at a
        later limit are tested at an earlier one. Where the clock stops the bisection, the largest
        limit that was shown to close all is returned; 0 where none was.
        """
        left = self._left(self.open, limit_s)
        self.open.clear()
        high, step = step_of(limit_s), FIRST
        if not left:
            return limit_s
        if self.clock.passed():
            return 0.0
        low = high - step
        while still := self._left(left, seconds_of(low)):
            if self.clock.passed():
                return 0.0
            high, step, left = low, 2 * step, still
            low = high - step
        while high - low > 1 and not self.clock.passed():
            middle = (low + high) // 2
            still = self._left(left, seconds_of(middle))
            if still:
                high, left = middle, still
            else:
                low = middle
        return seconds_of(low)

    def _left(self, frames: Mapping[Frame, Values | None], limit_s: float) -> dict[Frame, Values]:
        """Test frames at one limit: those that stay open, and what is known of their shapes."""
        place = self.bench.place(self.market)
        tests = [
            Pricing(market=place, frame=frame, limit_s=limit_s, start=start)
            for frame, start in frames.items()
        ]
        found = dict(zip(frames, self.bench.map(tested, tests), strict=True))
        self.tests += len(tests)
        self.closed |= {frame: dual for frame, (dual, values) in found.items() if values is None}
        return {frame: values for frame, (_, values) in found.items() if values is not None}


def step_of(limit_s: float) -> int:
    """The last step of the grid of limits that is no later: every cluster has the same grid, so
    that bounds of two compare.
    """
    return floor(log(limit_s) / log1p(FINE) + 1e-9)


def seconds_of(step: int) -> float:
    """The limit at a step of the grid."""
    return exp(step * log1p(FINE))


def aimed_at(best_s: float, gap: float) -> float:
    """The first limit of the grid that shows a gap."""
    return min(seconds_of(step_of(best_s * (1.0 - gap)) + 1), best_s) if gap < 1 else 0.0


def lower_bound(
    bench: Bench,
    markets: tuple[Market, ...],
    best_s: float,
    *,
    tolerance: float,
    clock: Limit | None = None,
) -> tuple[float, tuple[Closing, ...]]:
    """Seconds that no plan of any market ends before, and the frames that show it; 0 where the
    clock leaves no time to show any.

    Where not all frames close within `tolerance` of the best, the limit is that by which the
    earliest of them ends. A wide gap is shown first, which takes little and stands if the clock's
    limit passes.
    """
    clock, found = (
        clock or Limit(),
        (0.0, tuple(Closing(market=market, bench=bench) for market in markets)),
    )
    for share in (*(gap for gap in WIDE_GAPS if gap > tolerance), tolerance):
        limit = aimed_at(best_s, share)
        closings = tuple(
            Closing(market=one, bench=bench, tests=old.tests, clock=clock)
            for one, old in zip(markets, found[1], strict=True)
        )
        for closing in closings:
            limit = closing.closed_limit(limit)
        if limit > found[0]:
            found = limit, closings
        if clock.stopped_at:
            break
    return found


def holds(market: Market, dual: Dual) -> bool:
    """Whether prices close their frame: what every shape is worth by the limit made anew, and no
    linear program.
    """
    values, mbs = market.values(dual.frame, dual.limit_s), market.shapes.mbs
    floor = np.floor(np.maximum(market.cost(prices_of(dual)), 0.0) / mbs).astype(np.int64)
    dear = np.flatnonzero(values.microbatches > floor)
    market.refine(values, dear, above=floor[dear])
    return market.repriced(dual, market.samples(values)).samples < market.batch


def covers(ground: Ground, frames: list[Frame]) -> bool:
    """Whether frames make up the space: those that it begins with, and parts of the ones that were
    split.
    """
    left, waiting = set(frames), list(first_frames(ground))
    while waiting:
        frame = waiting.pop()
        if frame in left:
            continue
        parts = split(ground, frame)
        if not parts:
            return False
        waiting += parts
    return True
