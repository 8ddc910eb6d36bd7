"""Lower bound on step time, by branch and bound over subspaces with dual prices."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from math import exp, floor, log, log1p

import numpy as np

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
    prices_of,
)
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks, TaskInputs
from shardwright.search.mixed.stages.subspaces_and_stage_costs import (
    MixedStageCosts,
    root_subspaces,
    split_subspace,
)
from shardwright.search.mixed_cluster_certificate import Dual, Subspace
from shardwright.search.search_time_limit import Limit

LIMIT_GRID_STEP = 0.0005
"""Relative distance from one limit of the grid to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingTask:
    """A task: find dual prices of a subspace at a step-time limit.

    Args:
        pipelines_index: place of its pipelines in `TaskInputs.pipeline_sets`.
        start: shape values at this limit or a later one, or of a subspace near by.
    """

    pipelines_index: int
    subspace: Subspace
    limit_s: float
    start: ShapeMicrobatches | None


def run_pricing_task(
    inputs: TaskInputs, task: PricingTask
) -> tuple[Dual, ShapeMicrobatches | None]:
    """Dual prices of a subspace, and its shape values; None if the prices rule out every plan."""
    pipelines = inputs.pipeline_sets[task.pipelines_index]
    dual, values = pipelines.priced(task.subspace, task.limit_s, start=task.start)
    return dual, None if dual.samples < pipelines.batch else values


@dataclass(slots=True)
class BranchAndBound:
    """Subspaces of one set of pipelines: those proven to hold no plan by a limit, and the others.

    All subspaces of a round are tested at one limit, in any process.

    Args:
        closed: dual prices of the closed leaves: no plan of them ends by their limit.
        open: leaves that may hold such a plan, with their shape values.
        tests: number of prices computed.
        clock: past its limit nothing more is closed.
    """

    pipelines: PricedPipelines
    tasks: SearchTasks
    closed: dict[Subspace, Dual] = field(default_factory=dict)
    open: dict[Subspace, ShapeMicrobatches | None] = field(default_factory=dict)
    tests: int = 0
    clock: Limit = field(default_factory=Limit)

    def close(self, limit_s: float, *, max_tests: int) -> bool:
        """Rule out plans by a limit in every subspace, splitting open ones; True if none is left.

        Args:
            max_tests: largest number of tests.
        """
        # Branch and bound: dual prices under which a subspace's plans do fewer samples than the
        # batch prove that none of them ends by the limit; other subspaces are split. The widest
        # come first, so that no part of the space is split to the end before another is begun.
        waiting: deque[tuple[Subspace, ShapeMicrobatches | None]] = deque(
            (subspace, None) for subspace in root_subspaces(self.pipelines.stage_costs)
        )
        self.closed.clear()
        self.open.clear()
        begun, place, left = deque[Subspace](), self.tasks.index_of(self.pipelines), max_tests

        def ask() -> PricingTask | None:
            """The next subspace to price; None = no subspace waits, or no test is left."""
            nonlocal left
            if not waiting or not left or self.clock.passed():
                return None
            left -= 1
            subspace, start = waiting.popleft()
            begun.append(subspace)
            return PricingTask(
                pipelines_index=place, subspace=subspace, limit_s=limit_s, start=start
            )

        for dual, values in self.tasks.flow(
            run_pricing_task, ask, size=self.tasks.effort.tests_at_once, more=max_tests
        ):
            subspace = begun.popleft()
            self.tests += 1
            if values is None:
                self.closed[subspace] = dual
                continue
            parts = split_subspace(self.pipelines.stage_costs, subspace)
            waiting.extend((part, values) for part in parts)
            if not parts:
                self.open[subspace] = values
        if self.clock.stopped_at:
            return False
        self.open |= dict(waiting)
        return not self.open

    def closed_limit(self, limit_s: float) -> float:
        """Largest step-time limit in s, up to `limit_s`, that rules out all plans; 0 = timed out.

        0 where the clock stopped before any limit did.
        """
        effort = self.tasks.effort
        most = min(
            max(effort.bound_test_shapes // len(self.pipelines.shapes), effort.least_bound_tests),
            effort.bound_tests,
        )
        if not limit_s or self.close(limit_s, max_tests=most):
            return limit_s
        return 0.0 if self.clock.stopped_at else self.lower_limit(limit_s)

    def lower_limit(self, limit_s: float) -> float:
        """Largest lower step-time limit in s that rules out plans of open subspaces; 0 = timed out.

        From the limit down by doubled steps of the grid, then by bisection. Only subspaces that are
        open at a later limit are tested at an earlier one. Where the clock stops the bisection, the
        largest proven limit is returned; 0 where there is none.
        """
        left = self._still_open(self.open, limit_s)
        self.open.clear()
        high, step = step_of(limit_s), self.tasks.effort.first_lowered_steps
        if not left:
            return limit_s
        if self.clock.passed():
            return 0.0
        low = high - step
        while still := self._still_open(left, seconds_of(low)):
            if self.clock.passed():
                return 0.0
            high, step, left = low, 2 * step, still
            low = high - step
        while high - low > 1 and not self.clock.passed():
            middle = (low + high) // 2
            still = self._still_open(left, seconds_of(middle))
            if still:
                high, left = middle, still
            else:
                low = middle
        return seconds_of(low)

    def _still_open(
        self, subspaces: Mapping[Subspace, ShapeMicrobatches | None], limit_s: float
    ) -> dict[Subspace, ShapeMicrobatches]:
        """Test subspaces at one limit; return those that may hold a plan, with their values."""
        place = self.tasks.index_of(self.pipelines)
        tests = [
            PricingTask(pipelines_index=place, subspace=subspace, limit_s=limit_s, start=start)
            for subspace, start in subspaces.items()
        ]
        found = dict(zip(subspaces, self.tasks.map(run_pricing_task, tests), strict=True))
        self.tests += len(tests)
        self.closed |= {
            subspace: dual for subspace, (dual, values) in found.items() if values is None
        }
        return {subspace: values for subspace, (_, values) in found.items() if values is not None}


def step_of(limit_s: float) -> int:
    """Index of the last step-time limit of the geometric grid that is at most `limit_s` seconds.

    Every cluster has the same grid, so that bounds of two clusters compare.
    """
    return floor(log(limit_s) / log1p(LIMIT_GRID_STEP) + 1e-9)


def seconds_of(step: int) -> float:
    """Step-time limit in seconds at index `step` of the geometric grid of limits."""
    return exp(step * log1p(LIMIT_GRID_STEP))


def limit_for_gap(best_s: float, gap: float) -> float:
    """First limit of the grid, in seconds, that proves a relative gap to the best plan."""
    return min(seconds_of(step_of(best_s * (1.0 - gap)) + 1), best_s) if gap < 1 else 0.0


def lower_bound(
    tasks: SearchTasks,
    pipeline_sets: tuple[PricedPipelines, ...],
    best_s: float,
    *,
    tolerance: float,
    clock: Limit | None = None,
) -> tuple[float, tuple[BranchAndBound, ...]]:
    """Lower bound in seconds on every pipeline plan (0 = nothing proven), and its proof.

    0 where the clock leaves no time for a proof. Where not all subspaces close within `tolerance`
    of the best, the bound is the largest limit that closes all. A wide gap is proven first; this
    takes little time and stands if the clock's limit passes.
    """
    clock, found = (
        clock or Limit(),
        (
            0.0,
            tuple(BranchAndBound(pipelines=pipelines, tasks=tasks) for pipelines in pipeline_sets),
        ),
    )
    for share in (*(gap for gap in tasks.effort.first_gaps if gap > tolerance), tolerance):
        limit = limit_for_gap(best_s, share)
        closings = tuple(
            BranchAndBound(pipelines=one, tasks=tasks, tests=old.tests, clock=clock)
            for one, old in zip(pipeline_sets, found[1], strict=True)
        )
        for closing in closings:
            limit = closing.closed_limit(limit)
        if limit > found[0]:
            found = limit, closings
        if clock.stopped_at:
            break
    return found


def dual_holds(pipelines: PricedPipelines, dual: Dual) -> bool:
    """True where dual prices rule out every plan of their subspace, with all samples recomputed.

    No linear program is solved.
    """
    values, mbs = pipelines.values(dual.frame, dual.limit_s), pipelines.shapes.mbs
    floor = np.floor(np.maximum(pipelines.cost(prices_of(dual)), 0.0) / mbs).astype(np.int64)
    underpriced = np.flatnonzero(values.microbatches > floor)
    pipelines.refine(values, underpriced, above=floor[underpriced])
    return pipelines.valid_dual(dual, pipelines.samples(values)).samples < pipelines.batch


def covers_space(stage_costs: MixedStageCosts, subspaces: list[Subspace]) -> bool:
    """True where the subspaces together cover the space.

    They must be the root subspaces, or the parts of subspaces that were split.
    """
    given, waiting = set(subspaces), list(root_subspaces(stage_costs))
    while waiting:
        subspace = waiting.pop()
        if subspace in given:
            continue
        parts = split_subspace(stage_costs, subspace)
        if not parts:
            return False
        waiting += parts
    return True
