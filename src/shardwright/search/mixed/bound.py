"""The bound of a mixed space: frames closed one by one by prices, those that stay open split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwright.search.frames import Dual, Frame
from shardwright.search.limit import Limit
from shardwright.search.mixed.market import Market, prices_of
from shardwright.search.mixed.terms import Ground, first_frames, split

STEPS = (0.25, 0.15, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005)
"""Gaps that are tried one after another: no plan is faster than the best so far by more than this share."""
HALVINGS, FINE = 5, 0.0005
"""Tries between the last gap that was shown and the first that was not, as long as they are this far apart."""
FRAMES = 60
"""Tests of frames at most, at one limit."""


@dataclass(slots=True)
class Closing:
    """The frames of one market, as far as they are closed.

    Args:
        closed: the prices that close each leaf of the frames, at the largest limit so far. tests: linear programs solved.
        clock: past it nothing more is closed.
    """

    market: Market
    closed: dict[Frame, Dual] = field(default_factory=dict)
    tests: int = 0
    clock: Limit = field(default_factory=Limit)

    def close(self, limit_s: float, *, most: int) -> bool:
        """Close every frame at a limit; whether that is done. Frames closed at it before stay so; the others are tested, and split."""
        found: dict[Frame, Dual] = {}
        waiting = list(self.closed) or list(first_frames(self.market.ground))
        while waiting:
            frame = waiting.pop()
            before = self.closed.get(frame)
            if before is not None and before.limit_s >= limit_s:
                found[frame] = before
                continue
            if self.tests >= most or self.clock.passed():
                return False
            self.tests += 1
            dual, _ = self.market.priced(frame, limit_s)
            if dual.samples < self.market.batch:
                found[frame] = dual
                continue
            parts = split(frame)
            if not parts:
                return False
            waiting += parts
        self.closed = found
        return True


def lower_bound(
    markets: tuple[Market, ...],
    best_s: float,
    *,
    tolerance: float,
    clock: Limit | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[float, tuple[Closing, ...]]:
    """Seconds that no plan of any market ends before, and the frames that show it.

    Gaps are tried from wide to narrow until one stays open, `tolerance` is reached or the clock's limit has passed.
    """
    clock = clock or Limit()
    closings = tuple(Closing(market=market, clock=clock) for market in markets)
    reached, failed = 1.0, tolerance
    for step in [*(step for step in STEPS if step > tolerance), tolerance]:
        if not _all_close(closings, best_s * (1.0 - step)):
            failed = step
            break
        reached = step
        if progress is not None:
            progress(best_s * (1.0 - reached))
    for _ in range(HALVINGS):
        if reached - failed > FINE:
            middle = (reached + failed) / 2
            closed = _all_close(closings, best_s * (1.0 - middle))
            reached, failed = (middle, failed) if closed else (reached, middle)
    return best_s * (1.0 - reached), closings


def _all_close(closings: tuple[Closing, ...], limit_s: float) -> bool:
    return all(closing.close(limit_s, most=closing.tests + FRAMES) for closing in closings)


def holds(market: Market, dual: Dual) -> bool:
    """Whether prices close their frame: what every shape is worth by the limit made anew, and no linear program."""
    values, mbs = market.by_work(dual.frame, dual.limit_s), market.shapes.mbs
    floor = np.floor(np.maximum(market.cost(prices_of(dual)), 0.0) / mbs).astype(np.int64)
    dear = np.flatnonzero(values.microbatches > floor)
    market.refine(values, dear, dual.frame, dual.limit_s, above=floor[dear])
    return market.repriced(dual, market.samples(values)).samples < market.batch


def covers(ground: Ground, frames: list[Frame]) -> bool:
    """Whether frames make up the space: those that it begins with, and parts of the ones that were split."""
    left, waiting = set(frames), list(first_frames(ground))
    while waiting:
        frame = waiting.pop()
        if frame in left:
            continue
        parts = split(frame)
        if not parts:
            return False
        waiting += parts
    return True
