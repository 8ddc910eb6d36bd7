"""The bound of a mixed space: frames closed one by one by prices, those that stay open split."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from math import exp, floor, log, log1p

import numpy as np

from shardwright.lazy_dataclass import dataclass
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines, Values, prices_of
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks, TaskInputs
from shardwright.search.mixed.stages.frame_terms import StageCosts, first_frames, split
from shardwright.search.mixed_certificate import Dual, Frame
from shardwright.search.search_limit import Limit

FINE = 0.0005
"""From one limit of the grid to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """A frame that may have no plan by a limit.

    Args:
        pipelines_index: place of its pipelines in `TaskInputs.pipeline_sets`.
        start: what is known of its shapes there at no earlier a limit, or near by.
    """

    pipelines_index: int
    frame: Frame
    limit_s: float
    start: Values | None


def tested(inputs: TaskInputs, asked: Pricing) -> tuple[Dual, Values | None]:
    """Prices of a frame, and what is known of its shapes where they do not close it."""
    pipelines = inputs.pipeline_sets[asked.pipelines_index]
    dual, values = pipelines.priced(asked.frame, asked.limit_s, start=asked.start)
    return dual, None if dual.samples < pipelines.batch else values


@dataclass(slots=True)
class Closing:
    """Frames of one set of pipelines that are proven to hold no plan by a limit, and those that are
    not. All frames of a round are tested at one limit, in whatever process.

    Args:
        closed: prices of the leaves that no plan of which ends by their limit.
        open: leaves in which one may, and what is known of their shapes there.
        tests: how often a frame was priced.
        clock: past it nothing more is closed.
    """

    pipelines: PricedPipelines
    tasks: SearchTasks
    closed: dict[Frame, Dual] = field(default_factory=dict)
    open: dict[Frame, Values | None] = field(default_factory=dict)
    tests: int = 0
    clock: Limit = field(default_factory=Limit)

    def close(self, limit_s: float, *, most: int) -> bool:
        """Close frames at a limit, and split those that stay open, in at most so many tests;
        whether all are closed.
        """
        # Branch and bound: dual prices under which a frame's plans do fewer samples than the batch
        # prove that none of them ends by the limit; other frames are split. The widest come first,
        # so that no part of the space is split to the end before another is begun.
        waiting: deque[tuple[Frame, Values | None]] = deque(
            (frame, None) for frame in first_frames(self.pipelines.stage_costs)
        )
        self.closed.clear()
        self.open.clear()
        begun, place, left = deque[Frame](), self.tasks.place(self.pipelines), most

        def ask() -> Pricing | None:
            nonlocal left
            if not waiting or not left or self.clock.passed():
                return None
            left -= 1
            frame, start = waiting.popleft()
            begun.append(frame)
            return Pricing(pipelines_index=place, frame=frame, limit_s=limit_s, start=start)

        for dual, values in self.tasks.flow(
            tested, ask, size=self.tasks.effort.tests_at_once, more=most
        ):
            frame = begun.popleft()
            self.tests += 1
            if values is None:
                self.closed[frame] = dual
                continue
            parts = split(self.pipelines.stage_costs, frame)
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
        effort = self.tasks.effort
        most = min(
            max(effort.bound_test_shapes // len(self.pipelines.shapes), effort.least_bound_tests),
            effort.bound_tests,
        )
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
        high, step = step_of(limit_s), self.tasks.effort.first_lowered_steps
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
        place = self.tasks.place(self.pipelines)
        tests = [
            Pricing(pipelines_index=place, frame=frame, limit_s=limit_s, start=start)
            for frame, start in frames.items()
        ]
        found = dict(zip(frames, self.tasks.map(tested, tests), strict=True))
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
    tasks: SearchTasks,
    pipeline_sets: tuple[PricedPipelines, ...],
    best_s: float,
    *,
    tolerance: float,
    clock: Limit | None = None,
) -> tuple[float, tuple[Closing, ...]]:
    """Lower bound, in seconds, on the step time of every plan of the pipelines, and the frames that
    prove it; 0 where the clock leaves no time to prove any.

    Where not all frames close within `tolerance` of the best, the limit is that by which the
    earliest of them ends. A wide gap is shown first, which takes little and stands if the clock's
    limit passes.
    """
    clock, found = (
        clock or Limit(),
        (0.0, tuple(Closing(pipelines=pipelines, tasks=tasks) for pipelines in pipeline_sets)),
    )
    for share in (*(gap for gap in tasks.effort.first_gaps if gap > tolerance), tolerance):
        limit = aimed_at(best_s, share)
        closings = tuple(
            Closing(pipelines=one, tasks=tasks, tests=old.tests, clock=clock)
            for one, old in zip(pipeline_sets, found[1], strict=True)
        )
        for closing in closings:
            limit = closing.closed_limit(limit)
        if limit > found[0]:
            found = limit, closings
        if clock.stopped_at:
            break
    return found


def holds(pipelines: PricedPipelines, dual: Dual) -> bool:
    """True where prices close their frame: the samples of every shape by the limit are computed
    again, without a linear program.
    """
    values, mbs = pipelines.values(dual.frame, dual.limit_s), pipelines.shapes.mbs
    floor = np.floor(np.maximum(pipelines.cost(prices_of(dual)), 0.0) / mbs).astype(np.int64)
    underpriced = np.flatnonzero(values.microbatches > floor)
    pipelines.refine(values, underpriced, above=floor[underpriced])
    return pipelines.repriced(dual, pipelines.samples(values)).samples < pipelines.batch


def covers(stage_costs: StageCosts, frames: list[Frame]) -> bool:
    """True where frames make up the space: the frames that it begins with, and parts of the frames
    that were split.
    """
    left, waiting = set(frames), list(first_frames(stage_costs))
    while waiting:
        frame = waiting.pop()
        if frame in left:
            continue
        parts = split(stage_costs, frame)
        if not parts:
            return False
        waiting += parts
    return True
