"""The bound of a mixed space: frames closed one by one by prices, those that stay open split."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.search.frames import Dual, Frame
from shardwright.search.limit import Limit
from shardwright.search.mixed.market import Market, Values, prices_of
from shardwright.search.mixed.terms import Ground, first_frames, split

TESTS, FEWEST, SHAPES = 32, 12, 3_000_000
"""Frames that are tested at most, and at least, before the limit is lowered; shapes of all tests together between them."""
WIDE = 0.2
"""Gap that is shown first."""
FINE = 0.001
"""Share of a limit to which the earliest end of an open frame is found."""


@dataclass(slots=True)
class Closing:
    """The frames of one market, as far as they are closed.

    Args:
        closed: prices of the leaves that no plan of which ends by their limit. open: leaves in which one may, and what is known of their
            shapes there. tests: how often a frame was priced. clock: past it nothing more is closed.
    """

    market: Market
    closed: dict[Frame, Dual] = field(default_factory=dict)
    open: dict[Frame, Values] = field(default_factory=dict)
    tests: int = 0
    clock: Limit = field(default_factory=Limit)

    def close(self, limit_s: float, *, most: int) -> bool:
        """Close frames at a limit, and split those that stay open, in at most so many tests; whether all are closed."""
        # The widest first, so that no part of the space is split to the end before another is begun.
        waiting: deque[tuple[Frame, Values | None]] = deque((frame, None) for frame in first_frames(self.market.ground))
        self.closed.clear()
        self.open.clear()
        end = self.tests + most
        while waiting:
            frame, start = waiting.popleft()
            if self.clock.passed():
                return False
            if self.tests >= end and start is not None:
                self.open[frame] = start
                continue
            dual, values = self._test(frame, limit_s, start)
            if dual.samples < self.market.batch:
                self.closed[frame] = dual
                continue
            parts = split(frame)
            waiting.extend((part, values) for part in parts)
            if not parts:
                self.open[frame] = values
        return not self.open

    def lowered(self, limit_s: float) -> float:
        """Close what is open at a lower limit: the largest one, to FINE, that closes all. Returns it."""
        for frame, start in sorted(self.open.items(), key=lambda one: one[0].replicas):
            if self.clock.passed():
                return 0.0
            dual, _ = self._test(frame, limit_s, start)
            if dual.samples >= self.market.batch:
                limit_s, dual = self._earliest(frame, limit_s, start)
            self.closed[frame] = dual
        self.open.clear()
        return limit_s

    def _test(self, frame: Frame, limit_s: float, start: Values | None) -> tuple[Dual, Values]:
        self.tests += 1
        return self.market.priced(frame, limit_s, start=start)

    def _earliest(self, frame: Frame, limit_s: float, start: Values) -> tuple[float, Dual]:
        """The largest limit that closes a frame, and its prices there."""
        low, high, step = limit_s * 0.99, limit_s, 0.01
        closed, start = self._test(frame, low, start)
        while closed.samples >= self.market.batch and not self.clock.passed():
            high, step = low, min(2 * step, 0.5)
            low *= 1.0 - step
            closed, start = self._test(frame, low, start)
        while high - low > FINE * high:
            middle = (low + high) / 2
            dual, values = self._test(frame, middle, start)
            if dual.samples < self.market.batch:
                low, closed = middle, dual
            else:
                high, start = middle, values
        return low, closed


def lower_bound(
    markets: tuple[Market, ...], best_s: float, *, tolerance: float, clock: Limit | None = None
) -> tuple[float, tuple[Closing, ...]]:
    """Seconds that no plan of any market ends before, and the frames that show it; 0 where the clock leaves no time to show any.

    Where not all frames close within `tolerance` of the best, the limit is that by which the earliest of them ends. A wide gap is shown
    first, which takes little and stands if the clock's limit passes.
    """
    clock, found = clock or Limit(), (0.0, tuple(Closing(market=market) for market in markets))
    for share in (max(WIDE, tolerance), tolerance):
        limit = best_s * (1.0 - share)
        closings = tuple(Closing(market=market, tests=before.tests, clock=clock) for market, before in zip(markets, found[1], strict=True))
        for closing in closings:
            if limit and not closing.close(limit, most=min(max(SHAPES // len(closing.market.shapes), FEWEST), TESTS)):
                limit = closing.lowered(limit)
        if clock.stopped_at:
            break
        found = limit, closings
    return found


def holds(market: Market, dual: Dual) -> bool:
    """Whether prices close their frame: what every shape is worth by the limit made anew, and no linear program."""
    values, mbs = market.values(dual.frame, dual.limit_s), market.shapes.mbs
    floor = np.floor(np.maximum(market.cost(prices_of(dual)), 0.0) / mbs).astype(np.int64)
    dear = np.flatnonzero(values.microbatches > floor)
    market.refine(values, dear, above=floor[dear])
    return market.repriced(dual, market.samples(values)).samples < market.batch


def covers(ground: Ground, frames: list[Frame]) -> bool:
    """Whether frames make up the space: those that it begins with, and parts of the ones that were split.

    Files round the edges of frames, so they are compared by six digits.
    """
    left, waiting = {_rounded(frame) for frame in frames}, list(first_frames(ground))
    while waiting:
        frame = waiting.pop()
        if _rounded(frame) in left:
            continue
        parts = split(frame)
        if not parts:
            return False
        waiting += parts
    return True


def _rounded(frame: Frame) -> Frame:
    low, high = (float(f"{edge:.6g}") for edge in frame.nodes)
    return replace(frame, nodes=(low, high))
