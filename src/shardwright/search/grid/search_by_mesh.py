"""Search of a grid space mesh by mesh where it is large or leaves devices idle: a mesh is
crossed with the other axes only if the bound of all its members is below the best known step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.program.problem import Problem, under
from shardwright.progress import Progress
from shardwright.runtime.runtime_options import BY_NAME, in_vocabulary_order
from shardwright.search.grid.best_first import Outcome, Refinement, merged
from shardwright.search.grid.bounds.bounded_space import Crossed, bound_space, crossed
from shardwright.search.grid.bounds.mesh_bounds import has_experts, mesh_bounds
from shardwright.search.grid.bounds.nearest_group_prices import near_layers
from shardwright.search.grid.bounds.relaxed_mesh_bounds import relaxed_bounds
from shardwright.search.grid.members.declared_space import Space, parts_of
from shardwright.search.grid.members.device_meshes import MESH, Meshes, full_meshes, idle_meshes
from shardwright.search.grid.members.searched_options import LADDER
from shardwright.search.grid.members.strategy_counts import count_members
from shardwright.search.grid.overlapped_schedules import PairedSearch, search_paired
from shardwright.search.search_limit import Limit, progress_text
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.universal_bound import universal_bound
from shardwright.simulator.plan_simulation import simulate_grid
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_counts import lone_stages

FIRST_MESHES = 64
"""Crossed together at first; then four times as many, as a good plan on few devices rules out most
others."""
RAW_BYTES: Final = 0.2
"""Bytes that a set of members takes at most while it is bounded, of each raw member: few are legal.
Measured: 0.04 for DeepSeek-V3 on 2,048 devices in the exhaustive space (10^10 raw, 10^7 legal),
0.19 on 983,040 in the standard one, 0.001 to 0.05 for dense models.
"""
MEMBER_BYTES: Final = 40
"""Bytes that a legal member takes as long as it is kept."""
PARTS: Final = 3
"""A larger set is crossed in parts of a third of what the memory holds, which take about a second;
the clock is looked at between them."""
MESHES: Final = 2**15
"""Meshes that are bounded between two looks at the clock."""


@dataclass(slots=True)
class Searched:
    """Results of the search of a whole space.

    Args:
        outcome: of refining what was crossed.
        crossed: sets of members.
        left: meshes that were not, none of which has a member below its (meshes,) seconds beside
            it, inf where none of its members is legal; and the part of the space that they are of.
        repeated: meshes that do not tell a part from the first.
        refused: combinations of axis values in parts whose options the runtime does not run
            together.
        paired: orders that only general plans have.
    """

    outcome: Outcome = field(default_factory=Outcome)
    crossed: list[Crossed] = field(default_factory=list)
    left: list[tuple[Meshes, FloatArray, Space]] = field(default_factory=list)
    repeated: list[Meshes] = field(default_factory=list)
    refused: int = 0
    paired: list[PairedSearch] = field(default_factory=list)

    def may_reach(self, meshes: Meshes, space: Space, seconds: float) -> BoolArray:
        """(meshes,) True where a part of the space may have a member of at most `seconds`, as
        far as the search has not bounded it above.
        """
        known, least = [meshes], [np.full(len(meshes), -np.inf)]
        for part in self.crossed:
            if part.space.chosen == space.chosen and part.whole is not None:
                members = part.whole.members
                of_mesh = np.full(len(members.meshes), np.inf)
                np.minimum.at(
                    of_mesh, members.outers.columns["mesh"], members.least_of(part.whole.seconds)
                )
                # `members.meshes` are those that have a legal member.
                known += [part.meshes, members.meshes]
                least += [np.full(len(part.meshes), np.inf), of_mesh]
        for left, bounds, part_space in self.left:
            if part_space.chosen == space.chosen:
                known.append(left)
                least.append(bounds)
        number = _numbered(known)
        # The last that is said of a mesh counts.
        bound = np.full(int(number.max(initial=-1)) + 1, -np.inf)
        bound[number] = np.concatenate(least)
        reached: BoolArray = bound[number[: len(meshes)]] <= seconds
        return reached


_CODES: Final = 2**62
"""Codes of meshes are below this, so that they fit into 64 bits."""


def _numbered(sets: list[Meshes]) -> IntArray:
    """A number for each mesh of some sets in turn, the same for equal meshes."""
    code, size = np.zeros(sum(map(len, sets)), dtype=np.int64), 1
    for name in (*MESH, "order"):
        column = np.concatenate([one.columns[name] for one in sets])
        values = int(column.max(initial=0)) + 1
        if size * values > _CODES:
            code, size = np.unique(code, return_inverse=True)[1].reshape(-1), len(code)
        code, size = code * values + column, size * values
    return np.unique(code, return_inverse=True)[1].reshape(-1)


def search(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    top: int,
    limit: Limit | None = None,
    memory: int = SEARCH_MEMORY,
    progress: Progress | None = None,
    keeps: Callable[[Meshes], BoolArray] | None = None,
) -> Searched:
    """Bound and refine the members on all devices, then, where the space has them, those that leave
    devices idle.

    The parts with one value of each option of the runtime come one after another, each against what
    was reached before: first the space's first, then those under which the best of it is faster. Of
    these only meshes that can be among the best are crossed.

    Args:
        limit: past it the best so far stands; what was not crossed by then counts with the bound of
            its mesh.
        memory: bytes for members: one half for those that are looked at, one for those that were
            and are kept for what comes behind.
        keeps: which meshes are looked at, where others are known to have no member among the `top`
            best.
    """
    found, limit = Searched(), limit or Limit()
    first, *others = parts = parts_of(problem, space)

    def meshes_of(own: Problem) -> tuple[Meshes, Meshes | None]:
        # Options place no device: all parts have the same meshes, and as many members of each,
        # unless ZeRO stages mean something else.
        runtime = own.runtime
        asked = replace(facts, lone_stages=lone_stages(runtime))
        return _counted(
            replace(space, options=()), asked, runtime.zero_stages, runtime.zero_with_pipeline
        )

    full, idle = meshes_of(problem)
    found.refused = (len(space.rows()) - len(parts)) * (
        full.enumerated + (idle.enumerated if idle is not None else 0)
    )

    def kept_of(own: Problem) -> tuple[Meshes, Meshes | None]:
        full, idle = meshes_of(own)
        if keeps is None:
            return full, idle
        kept = keeps(full if idle is None else full.joined(idle))
        return full.take(kept[: len(full)]), None if idle is None else idle.take(kept[len(full) :])

    def run(part: Space) -> _Run:
        own = under(problem, part.chosen)
        return _Run(
            own,
            part,
            facts,
            capacity,
            max(top, 1),
            limit,
            memory // 2,
            progress,
            found,
            *kept_of(own),
        )

    run(first).search(behind=first)
    if others and found.outcome.ranked:
        others = fastest_first(problem, others, found.outcome.ranked[0].grid)
    for part in others:
        run(part).search(behind=first)
    return found


@lru_cache(maxsize=4)
def _counted(
    space: Space, facts: GridFacts, zero_stages: tuple[int, ...], zero_with_pipeline: int
) -> tuple[Meshes, Meshes | None]:
    """The meshes on all devices, and those that leave some idle, with the numbers of their members
    as columns.
    """
    full = full_meshes(space, facts)
    count = partial(
        count_members, space, facts, zero_stages=zero_stages, zero_with_pipeline=zero_with_pipeline
    )
    if not space.fewest:
        return full.counted(count(full)), None
    idle = idle_meshes(space, facts)
    every = full.joined(idle)
    every = every.counted(count(every))
    rows = np.arange(len(every))
    return every.take(rows[: len(full)], illegal=full.illegal), every.take(
        rows[len(full) :], illegal=idle.illegal
    )


def fastest_first(problem: Problem, parts: Iterable[Space], grid: Grid) -> list[Space]:
    """Parts with one value of each option, sorted by the seconds of a step of `grid` under their
    options.
    """
    modules = tuple(pair for pair in grid.options if pair[0] in LADDER)

    def seconds(part: Space) -> float:
        return simulate_grid(
            problem, replace(grid, options=in_vocabulary_order((*part.chosen, *modules)))
        ).step_time_s

    return sorted(parts, key=seconds)


def told_apart(columns: Mapping[str, IntArray], part: Space, first: Space) -> BoolArray:
    """(rows,) True where every option that differs between `part` and `first` changes something
    on the mesh; elsewhere both parts have the same plans.
    """
    other = [BY_NAME[name] for name, value in part.chosen if (name, value) not in first.chosen]
    told = np.ones(len(columns["tp"]), dtype=np.bool_)
    for option in other:
        told &= (
            np.any([columns[axis] > 1 for axis in option.along], axis=0) if option.along else True
        )
    return told


@dataclass(slots=True)
class _Run:
    problem: Problem
    space: Space
    facts: GridFacts
    capacity: int
    top: int
    limit: Limit
    half: int
    progress: Progress | None
    found: Searched
    full: Meshes
    idle: Meshes | None

    @property
    def most_raw(self) -> int:
        """Number of raw members of a set that is crossed at once."""
        return int(self.half / RAW_BYTES)

    def search(self, *, behind: Space) -> None:
        """Search the part; meshes on which it has the same plans as the part `behind` are
        counted as repeated and left out.
        """
        full, idle = self.full, self.idle
        if not self.found.outcome.ranked and len(full) * full.each <= self.most_raw:
            some, _ = self.cross(full)
            self.refine(some)
            self.found.outcome = merged(self.found.outcome, some.outcome, top=self.top)
            if idle is not None:
                self.in_order(idle)
            self.pair()
            return
        every = full if idle is None else full.joined(idle)
        told = told_apart(every.columns, self.space, behind)
        self.found.repeated.append(every.take(~told))
        every = every.take(told, illegal=every.illegal)
        if self.found.outcome.ranked and self.limit.passed():
            self.leave(every)
        else:
            self.in_order(every)
        self.pair()

    def cross(self, meshes: Meshes) -> tuple[Refinement, bool]:
        """All members of some meshes with their bounds, to be refined; and True if there is
        memory to keep them.
        """
        until = self.found.outcome.worst_of(self.top)
        some = bound_space(
            self.problem, self.space, self.facts, capacity=self.capacity, meshes=meshes, until=until
        )
        kept = sum(part.num_members for part in self.found.crossed if part.whole is not None)
        room = (kept + some.members.num_members) * MEMBER_BYTES <= self.half
        self.found.crossed.append(crossed(self.space, meshes, some, keep=room))
        return Refinement(
            self.problem, some.prepared, some.seconds, capacity=self.capacity, top=self.top
        ), room

    def refine(self, some: Refinement, *, until: float = np.inf) -> None:
        """Rank the members that can be among the best, as far as they are under `until` seconds."""
        known = self.found.outcome
        best_s = known.ranked[0].step_time_s if known.ranked else float("inf")
        some.run(
            self.limit,
            until=min(until, known.worst_of(self.top)),
            best_s=best_s,
            progress=self.progress,
        )

    def pair(self) -> None:
        """Search the orders that only general plans have."""
        known = self.found.outcome
        more = search_paired(
            self.problem,
            self.space,
            self.facts,
            capacity=self.capacity,
            top=self.top,
            until=known.worst_of(self.top),
            limit=self.limit,
        )
        if more is not None:
            self.found.paired.append(more)
            self.found.outcome = merged(
                known, Outcome(ranked=more.ranked, lower_bound_s=more.lower_bound_s), top=self.top
            )

    def in_order(self, meshes: Meshes) -> None:
        """Cross meshes, those of the least bound first, as long as their members can be among the
        best.

        A set is refined as long as neither a mesh that is left nor another set has a smaller bound,
        or to its end if it cannot wait.
        """
        meshes, bounds = self._bounded(meshes)
        order, at, size = np.argsort(bounds, kind="stable"), 0, FIRST_MESHES
        known, sets = self.found.outcome, list[Refinement]()
        waiting: list[tuple[float, int]] = []
        # What is not ranked is in a mesh that was not crossed, with at least `least`, or in a set
        # that waits, with at least `best`: once both reach the last rank, no member can be better.
        while at < len(order) or waiting:
            outcome = self.found.outcome
            least, (best, number) = (
                float(bounds[order[at]]) if at < len(order) else np.inf,
                waiting[0] if waiting else (np.inf, -1),
            )
            if min(least, best) >= outcome.worst_of(self.top):
                break
            if self.limit.ends(found=bool(outcome.ranked)):
                outcome.lower_bound_s = min(outcome.lower_bound_s, least)
                break
            if best <= least:
                heapq.heappop(waiting)
                # One that is no better than the next still takes a step.
                others = min(least, waiting[0][0] if waiting else np.inf)
                until = max(others, np.nextafter(best, np.inf))
            else:
                self._say(outcome, least, at, len(order))
                size = max(min(size, self.most_raw // PARTS // meshes.each), 1)
                end = at + int(
                    np.searchsorted(
                        bounds[order[at : at + size]], min(outcome.worst_of(self.top), best)
                    )
                )
                some, room = self.cross(meshes.take(np.sort(order[at:end])))
                at, size, number, until = end, size * 4, len(sets), some.least() if room else np.inf
                sets.append(some)
            self.refine(sets[number], until=until)
            if sets[number].least() < np.inf:
                heapq.heappush(waiting, (sets[number].least(), number))
            self.found.outcome = reduce(
                partial(merged, top=self.top), (one.outcome for one in sets), known
            )
        rest = order[at:]
        self.found.left.append(
            (meshes.take(rest, illegal=meshes.illegal), bounds[rest], self.space)
        )

    def _bounded(self, meshes: Meshes) -> tuple[Meshes, FloatArray]:
        """Meshes with their bounds: all of them, or those that were bounded before the limit."""
        same = [
            part.whole
            for part in self.found.crossed
            if part.space is self.space and part.whole is not None
        ]
        known, until = same[0].prepared if same else None, self.found.outcome.worst_of(self.top)
        pieces = [
            np.arange(at, min(at + MESHES, len(meshes))) for at in range(0, len(meshes), MESHES)
        ]
        bounds = [np.empty(0)]
        for place, rows in enumerate(pieces):
            if self.limit.passed() and (self.found.outcome.ranked or place):
                self.leave(meshes.take(np.arange(rows[0], len(meshes))))
                meshes = meshes.take(np.arange(rows[0]), illegal=meshes.illegal)
                break
            some = meshes.take(rows)
            near = (
                near_layers(self.problem, self.space, self.facts, some.columns)
                if has_experts(self.problem)
                else None
            )
            found = mesh_bounds(
                self.problem, self.space, self.facts, some, known=known, near=near, until=until
            )
            close = np.flatnonzero(found < until)
            if len(close) and until < np.inf:
                within = some.take(close)
                nearer = relaxed_bounds(
                    self.problem,
                    self.space,
                    self.facts,
                    within,
                    capacity=self.capacity,
                    near=near,
                    until=until,
                )
                found[close] = np.maximum(found[close], nearer)
            bounds.append(found)
        return meshes, np.concatenate(bounds)

    def leave(self, meshes: Meshes) -> None:
        """Count meshes as not crossed, under the bound that holds for any plan."""
        least = universal_bound(self.problem, self.space.devices)
        self.found.outcome.lower_bound_s = min(self.found.outcome.lower_bound_s, least)
        self.found.left.append((meshes, np.full(len(meshes), least), self.space))

    def _say(self, outcome: Outcome, least: float, at: int, count: int) -> None:
        if self.progress is not None:
            best = outcome.ranked[0].step_time_s if outcome.ranked else float("inf")
            self.progress(
                progress_text("search meshes", best_s=best, lower_s=least, limit=self.limit),
                at,
                count,
            )
