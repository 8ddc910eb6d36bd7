"""Best-first search over the members of a grid space, ordered by their lower bounds.

Three tiers of bounds: B0 (closed form) of every member; B1 (longest path, with the exact peak
memory) of the member with the smallest B0; then S (simulated step time). A member is refined to the
next tier when no other bound is smaller. A member whose own S is the smallest value is the next
best, certified in rank: every other member has a bound that is not smaller.
"""

from __future__ import annotations

import heapq
from dataclasses import field

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.bounds.peak_memory_bounds import Peaks
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.search_time_limit import Limit, progress_text
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid

_B1, _S = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A member of a grid space with the simulation of its plan."""

    grid: Grid
    result: SimulatedPlan

    @property
    def step_time_s(self) -> float:
        """Simulated seconds of one training step of the member."""
        return self.result.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMember:
    """A member that a search simulated and that fits: its step seconds, and bytes of a device."""

    grid: Grid
    step_time_s: float
    reserved_bytes: int


def member_of(simulated: Simulated) -> SimulatedMember:
    """Grid, step seconds and fullest device's reserved bytes of a member, no other results."""
    return SimulatedMember(
        grid=simulated.grid,
        step_time_s=simulated.step_time_s,
        reserved_bytes=simulated.result.need,
    )


@dataclass(slots=True)
class SearchOutcome:
    """Ranked members, counts and proven lower bound that a best-first search has reached.

    Args:
        ranked: simulated members, fastest first, certified in this order.
        fitting: all members that were simulated and fit, ranked or not.
        simulated, paths: numbers of members that were simulated (S) and that have a B1.
        too_large: members whose exact peak exceeds the capacity, on a device or in host memory.
        lower_bound_s: seconds that no unranked member can beat.
    """

    ranked: list[Simulated] = field(default_factory=list)
    fitting: list[SimulatedMember] = field(default_factory=list)
    simulated: int = 0
    paths: int = 0
    too_large: int = 0
    lower_bound_s: float = float("inf")

    @property
    def certified(self) -> bool:
        """True if no unranked member can beat the first ranked one, or if none is ranked."""
        return not self.ranked or self.lower_bound_s >= self.ranked[0].step_time_s

    def worst_of(self, top: int) -> float:
        """Step seconds to beat to be among the `top` best; inf while fewer are ranked."""
        return self.ranked[top - 1].step_time_s if len(self.ranked) >= top else float("inf")


def merged(first: SearchOutcome, second: SearchOutcome, *, top: int) -> SearchOutcome:
    """Combine the outcomes of two parts of a space and keep the `top` fastest members.

    Of equally fast members, those of `first` come first.
    """
    ranked = sorted([*first.ranked, *second.ranked], key=lambda s: s.step_time_s)[:top]
    return SearchOutcome(
        ranked=ranked,
        fitting=[*first.fitting, *second.fitting],
        simulated=first.simulated + second.simulated,
        paths=first.paths + second.paths,
        too_large=first.too_large + second.too_large,
        lower_bound_s=min(first.lower_bound_s, second.lower_bound_s),
    )


class Refinement:
    """Best-first search over a set of members that can pause at a bound and resume later."""

    def __init__(
        self, problem: Problem, prepared: Prepared, bounds: FloatArray, *, capacity: float, top: int
    ) -> None:
        """Queue all members with a finite bound by their B0.

        Args:
            bounds: B0 seconds of every member, inf = infeasible.
            capacity: bytes of a device that a plan may fill.
            top: number of members to rank.
        """
        self.outcome = SearchOutcome()
        self._problem, self._prepared, self._capacity, self._top = problem, prepared, capacity, top
        self._peaks = Peaks(problem, prepared)
        self._waiting = _BoundQueue(bounds, np.flatnonzero(np.isfinite(bounds)))
        self._heap: list[tuple[float, int, int, object]] = []
        self.outcome.lower_bound_s = self.least()

    def least(self) -> float:
        """Lower bound in seconds of all unranked members; inf if none left or `top` are ranked."""
        if len(self.outcome.ranked) >= self._top:
            return float("inf")
        return min(self._waiting.bound(), self._heap[0][0] if self._heap else float("inf"))

    def run(
        self,
        limit: Limit,
        *,
        until_s: float = float("inf"),
        best_s: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        """Rank members, fastest first, until `top` are ranked or no bound is below `until_s`.

        Args:
            limit: search limit; past it the best member so far is kept with its proven gap.
            best_s: step seconds of the best plan found elsewhere.
        """
        outcome, heap = self.outcome, self._heap
        best_s = min(
            [best_s, *(entry[3].step_time_s for entry in heap if isinstance(entry[3], Simulated))]
        )
        # The least bound in both queues (B0 of members not refined, B1 and S of those on the
        # heap) bounds every member that is not ranked. A member whose own S is the least value is
        # the next best, since no other member has a smaller bound.
        while len(outcome.ranked) < self._top:
            outcome.lower_bound_s = self.least()
            if outcome.lower_bound_s >= until_s:
                break
            if limit.ends(found=best_s < float("inf")):
                simulated = [entry[3] for entry in heap if isinstance(entry[3], Simulated)]
                outcome.ranked = (
                    outcome.ranked or sorted(simulated, key=lambda s: s.step_time_s)[:1]
                )
                break
            bound = self._waiting.bound()
            if heap and heap[0][0] <= bound:
                best_s = min(
                    best_s, _rank_or_simulate(self._problem, heap, self._capacity, outcome)
                )
            else:
                self._push_longest_path(self._waiting.pop(), bound)
            if progress is not None:
                say = progress_text(
                    "refine", best_s=best_s, lower_s=outcome.lower_bound_s, limit=limit
                )
                progress(say, len(outcome.ranked), self._top)

    def _push_longest_path(self, place: int, bound: float) -> None:
        """Drop a member of too large exact peak memory, else push its longest path on the heap."""
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


class _BoundQueue:
    """Queue of members by ascending bound, sorted lazily in batches of growing size."""

    def __init__(self, bounds: FloatArray, places: IntArray) -> None:
        self._bounds = bounds
        self._rest = places
        self._batch: list[int] = []
        self._size = 256

    def _fill(self) -> None:
        """Sort the next batch of members with the smallest bounds if the current batch is empty."""
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
        """Smallest bound in seconds of the queued members; inf if the queue is empty."""
        self._fill()
        return float(self._bounds[self._batch[-1]]) if self._batch else float("inf")

    def pop(self) -> int:
        """Remove and return the place of the member with the smallest bound."""
        self._fill()
        return self._batch.pop()


def _rank_or_simulate(
    problem: Problem,
    heap: list[tuple[float, int, int, object]],
    capacity: float,
    outcome: SearchOutcome,
) -> float:
    """Rank the heap's top if simulated, else simulate and requeue it; its seconds or inf (no room).

    Return the step seconds, or inf if the plan does not fit in memory.
    """
    _, tier, place, entry = heapq.heappop(heap)
    if tier == _S:
        assert isinstance(entry, Simulated)
        outcome.ranked.append(entry)
        return entry.step_time_s
    assert isinstance(entry, Grid)
    simulated = Simulated(grid=entry, result=simulate_grid(problem, entry))
    if not simulated.result.fits_in(capacity):
        outcome.paths -= 1
        outcome.too_large += 1
        return float("inf")
    outcome.simulated += 1
    outcome.fitting.append(member_of(simulated))
    heapq.heappush(heap, (simulated.step_time_s, _S, place, simulated))
    return simulated.step_time_s
