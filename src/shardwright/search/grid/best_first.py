"""Best-first refinement over three tiers of bounds: a member waits under its best known lower bound
and is refined when no other bound is smaller.

B0 of all; then B1 (and exact memory) of the first; then S. A member that comes up under its own S
is the next best, certified in rank: everything else waits under a bound that is not smaller.
"""

from __future__ import annotations

import heapq
from dataclasses import field

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.grid_seconds import step_costs
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.progress import Progress
from shardwright.search.grid.bounds.bound_arrays import Prepared
from shardwright.search.grid.bounds.peak_memory_bounds import Peaks
from shardwright.search.grid.bounds.pipeline_line_bounds import member_path
from shardwright.search.grid.members.member_arrays import member_grid
from shardwright.search.search_limit import Limit, progress_text
from shardwright.simulator.plan_simulation import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.grid import Grid

_B1, _S = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A member with the simulation of its plan."""

    grid: Grid
    result: SimulatedPlan

    @property
    def step_time_s(self) -> float:
        """Seconds of its step."""
        return self.result.step_time_s


@dataclass(slots=True)
class Outcome:
    """Results of a refinement.

    Args:
        ranked: simulated members, best first, certified in this order.
        simulated, paths: how many reached S and B1.
        too_large: members whose exact peak exceeds the capacity, on a device or in host memory.
        lower_bound_s: no member that is not ranked is faster.
    """

    ranked: list[Simulated] = field(default_factory=list)
    simulated: int = 0
    paths: int = 0
    too_large: int = 0
    lower_bound_s: float = float("inf")

    @property
    def certified(self) -> bool:
        """True if no member is faster than the first."""
        return not self.ranked or self.lower_bound_s >= self.ranked[0].step_time_s

    def worst_of(self, top: int) -> float:
        """Seconds below which a member is among the `top` best."""
        return self.ranked[top - 1].step_time_s if len(self.ranked) >= top else float("inf")


def merged(one: Outcome, other: Outcome, *, top: int) -> Outcome:
    """The results of two parts of a space together; of equally fast members those of `one`
    first.
    """
    ranked = sorted([*one.ranked, *other.ranked], key=lambda s: s.step_time_s)[:top]
    return Outcome(
        ranked=ranked,
        simulated=one.simulated + other.simulated,
        paths=one.paths + other.paths,
        too_large=one.too_large + other.too_large,
        lower_bound_s=min(one.lower_bound_s, other.lower_bound_s),
    )


class Refinement:
    """Refinement of a set of members, which stops when a member elsewhere may be better and can
    go on from there.
    """

    def __init__(
        self, problem: Problem, prepared: Prepared, bounds: FloatArray, *, capacity: float, top: int
    ) -> None:
        """Args:
        bounds: B0 seconds of every member, inf = infeasible. capacity: bytes of a device. top:
        members to rank.
        """
        self.outcome = Outcome()
        self._problem, self._prepared, self._capacity, self._top = problem, prepared, capacity, top
        self._peaks = Peaks(problem, prepared)
        self._waiting = _Sorted(bounds, np.flatnonzero(np.isfinite(bounds)))
        self._heap: list[tuple[float, int, int, object]] = []
        self.outcome.lower_bound_s = self.least()

    def least(self) -> float:
        """Lower bound in seconds of all members that may still be ranked."""
        if len(self.outcome.ranked) >= self._top:
            return float("inf")
        return min(self._waiting.bound(), self._heap[0][0] if self._heap else float("inf"))

    def run(
        self,
        limit: Limit,
        *,
        until: float = float("inf"),
        best_s: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        """Rank the best members under `until` seconds.

        Args:
            limit: past it the best so far stands with its proven gap.
            best_s: of a plan found elsewhere.
        """
        outcome, heap = self.outcome, self._heap
        best_s = min(
            [best_s, *(entry[3].step_time_s for entry in heap if isinstance(entry[3], Simulated))]
        )
        # The least bound of all that waits (B0 of members not refined, B1 and S of those on the
        # heap) bounds every member that is not ranked. A member that comes up under its own S is
        # the next best, since nothing waits under less.
        while len(outcome.ranked) < self._top:
            outcome.lower_bound_s = self.least()
            if outcome.lower_bound_s >= until:
                break
            if limit.ends(found=best_s < float("inf")):
                found = [entry[3] for entry in heap if isinstance(entry[3], Simulated)]
                outcome.ranked = outcome.ranked or sorted(found, key=lambda s: s.step_time_s)[:1]
                break
            bound = self._waiting.bound()
            if heap and heap[0][0] <= bound:
                best_s = min(best_s, _advance(self._problem, heap, self._capacity, outcome))
            else:
                self._path(self._waiting.pop(), bound)
            if progress is not None:
                say = progress_text(
                    "refine", best_s=best_s, lower_s=outcome.lower_bound_s, limit=limit
                )
                progress(say, len(outcome.ranked), self._top)

    def _path(self, place: int, bound: float) -> None:
        """Compute the longest path (B1) of a member whose peak memory through its order may fit,
        and put it on the heap.
        """
        if self._peaks.of(place) > self._capacity:
            self.outcome.too_large += 1
            return
        self.outcome.paths += 1
        problem, prepared = self._problem, self._prepared
        grid = member_grid(prepared.members, place)
        seconds = member_path(
            problem, prepared, place, grid, step_costs(problem, grid, prepared.priced(place))
        )
        heapq.heappush(self._heap, (max(seconds, bound), _B1, place, grid))


class _Sorted:
    """Members in order of their bound, sorted lazily in growing batches."""

    def __init__(self, bounds: FloatArray, places: IntArray) -> None:
        self._bounds = bounds
        self._rest = places
        self._batch: list[int] = []
        self._size = 256

    def _fill(self) -> None:
        if self._batch or not len(self._rest):
            return
        size = min(self._size, len(self._rest))
        values = self._bounds[self._rest]
        order = np.argpartition(values, size - 1) if size < len(self._rest) else np.arange(size)
        chosen, self._rest = self._rest[order[:size]], self._rest[order[size:]]
        ranked = chosen[np.lexsort((chosen, self._bounds[chosen]))]
        self._batch = ranked[::-1].tolist()
        self._size *= 8

    def bound(self) -> float:
        """The smallest bound of the waiting members."""
        self._fill()
        return float(self._bounds[self._batch[-1]]) if self._batch else float("inf")

    def pop(self) -> int:
        """Remove and return the member with the smallest bound."""
        self._fill()
        return self._batch.pop()


def _advance(
    problem: Problem, heap: list[tuple[float, int, int, object]], capacity: float, outcome: Outcome
) -> float:
    """Simulate the first member of the heap and keep it if it fits, or rank it if it is
    simulated; returns its seconds, inf if it does not fit.
    """
    _, tier, place, held = heapq.heappop(heap)
    if tier == _S:
        assert isinstance(held, Simulated)
        outcome.ranked.append(held)
        return held.step_time_s
    assert isinstance(held, Grid)
    simulated = Simulated(grid=held, result=simulate_grid(problem, held))
    if not simulated.result.fits_in(capacity):
        outcome.paths -= 1
        outcome.too_large += 1
        return float("inf")
    outcome.simulated += 1
    heapq.heappush(heap, (simulated.step_time_s, _S, place, simulated))
    return simulated.step_time_s
