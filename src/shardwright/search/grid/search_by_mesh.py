"""Search of a grid space mesh by mesh, if the space is large or leaves devices idle.

A mesh is expanded into members only if the bound of all its members is below the best known step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.runtime.runtime_options import BY_NAME, in_vocabulary_order
from shardwright.search.grid.best_first_search import Refinement, SearchOutcome, merged
from shardwright.search.grid.bounds.bounded_members import (
    ExpandedMembers,
    bound_space,
    record_of_members,
)
from shardwright.search.grid.bounds.mesh_bounds import mesh_bounds
from shardwright.search.grid.bounds.nearest_group_layer_times import near_layers
from shardwright.search.grid.bounds.relaxed_mesh_bounds import relaxed_bounds
from shardwright.search.grid.members.default_searched_options import LADDER
from shardwright.search.grid.members.device_meshes import MESH, MeshRows, full_meshes, idle_meshes
from shardwright.search.grid.members.grid_search_space import Space, parts_of
from shardwright.search.grid.members.member_counts_by_mesh import count_members
from shardwright.search.grid.search_overlapped_schedules import PairedSearch, search_paired
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, progress_text
from shardwright.search.universal_time_bound import universal_bound
from shardwright.simulator.plan_simulation import simulate_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_size_facts import has_experts, lone_stages
from shardwright.strategy.grid.parallelism_grid import Grid

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
    """Results of the search of a whole grid space.

    Args:
        outcome: result of refining the expanded members.
        expanded: expanded sets of members.
        left: meshes that were not expanded; the (meshes,) lower bounds in seconds of their members,
            inf if none is legal; and the part of the space to which they belong.
        repeated: meshes on which a part of the space has the same plans as the first part.
        refused: combinations of axis values in parts whose options the runtime rejects together.
        paired: results of the schedules that only general plans run.
    """

    outcome: SearchOutcome = field(default_factory=SearchOutcome)
    expanded: list[ExpandedMembers] = field(default_factory=list)
    left: list[tuple[MeshRows, FloatArray, Space]] = field(default_factory=list)
    repeated: list[MeshRows] = field(default_factory=list)
    refused: int = 0
    paired: list[PairedSearch] = field(default_factory=list)

    def may_reach(self, meshes: MeshRows, space: Space, seconds: float) -> BoolArray:
        """(meshes,) True where a part may still have a member of at most `seconds` on that mesh."""
        mesh_sets, bound_sets = [meshes], [np.full(len(meshes), -np.inf)]
        for part in self.expanded:
            if part.space.chosen == space.chosen and part.whole is not None:
                members = part.whole.members
                of_mesh = np.full(len(members.meshes), np.inf)
                np.minimum.at(
                    of_mesh, members.outers.columns["mesh"], members.least_of(part.whole.seconds)
                )
                # `members.meshes` are those that have a legal member.
                mesh_sets += [part.meshes, members.meshes]
                bound_sets += [np.full(len(part.meshes), np.inf), of_mesh]
        for unexpanded, bounds, part_space in self.left:
            if part_space.chosen == space.chosen:
                mesh_sets.append(unexpanded)
                bound_sets.append(bounds)
        mesh_numbers = _mesh_numbers(mesh_sets)
        # Assignment keeps the last bound of each mesh.
        bound = np.full(int(mesh_numbers.max(initial=-1)) + 1, -np.inf)
        bound[mesh_numbers] = np.concatenate(bound_sets)
        reached: BoolArray = bound[mesh_numbers[: len(meshes)]] <= seconds
        return reached


_CODES: Final = 2**62
"""Codes of meshes are below this, so that they fit into 64 bits."""


def _mesh_numbers(sets: list[MeshRows]) -> IntArray:
    """(rows,) number of each mesh over all `sets` in turn; equal meshes have equal numbers."""
    code, size = np.zeros(sum(map(len, sets)), dtype=np.int64), 1
    for name in (*MESH, "order"):
        column = np.concatenate([meshes.columns[name] for meshes in sets])
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
    keeps: Callable[[MeshRows], BoolArray] | None = None,
) -> Searched:
    """Bound and refine the members on all devices, then the members that leave devices idle.

    Parts with one value of each runtime option are searched in turn, each against the best step
    found before: the space's first part, then the others by the step time of the best grid under
    their options. Of the other parts only meshes that can be among the best are expanded.

    Args:
        limit: search limit; past it the best member so far is kept, and each mesh that is not
            expanded counts with the bound of its mesh.
        memory: bytes for members: one half for members being refined, one half for members that
            are kept for later.
        keeps: selects the meshes to search, if other meshes are known to have no member among the
            `top` best.
    """
    found, limit = Searched(), limit or Limit()
    first, *others = parts = parts_of(problem, space)

    def meshes_of(part_problem: Problem) -> tuple[MeshRows, MeshRows | None]:
        """Meshes of a part on all devices, and those that leave devices idle."""
        # Options place no device: all parts have the same meshes, and as many members of each,
        # unless ZeRO stages mean something else.
        runtime = part_problem.runtime
        part_facts = replace(facts, lone_stages=lone_stages(runtime))
        return _counted_meshes(
            replace(space, options=()), part_facts, runtime.zero_stages, runtime.zero_with_pipeline
        )

    full, idle = meshes_of(problem)
    found.refused = (len(space.option_parts()) - len(parts)) * (
        full.enumerated + (idle.enumerated if idle is not None else 0)
    )

    def kept_of(part_problem: Problem) -> tuple[MeshRows, MeshRows | None]:
        """Meshes of a part that `keeps` selects: on all devices, and with idle devices."""
        full, idle = meshes_of(part_problem)
        if keeps is None:
            return full, idle
        selected = keeps(full if idle is None else full.joined(idle))
        return full.take(selected[: len(full)]), None if idle is None else idle.take(
            selected[len(full) :]
        )

    def run(part: Space) -> _Run:
        """Prepare the search of one part of the space."""
        part_problem = under(problem, part.chosen)
        return _Run(
            part_problem,
            part,
            facts,
            capacity,
            max(top, 1),
            limit,
            memory // 2,
            progress,
            found,
            *kept_of(part_problem),
        )

    run(first).search(behind=first)
    if others and found.outcome.ranked:
        others = fastest_first(problem, others, found.outcome.ranked[0].grid)
    for part in others:
        run(part).search(behind=first)
    return found


@lru_cache(maxsize=4)
def _counted_meshes(
    space: Space, facts: GridFacts, zero_stages: tuple[int, ...], zero_with_pipeline: int
) -> tuple[MeshRows, MeshRows | None]:
    """Meshes on all devices and meshes with idle devices, with their member counts as columns."""
    full = full_meshes(space, facts)
    count = partial(
        count_members, space, facts, zero_stages=zero_stages, zero_with_pipeline=zero_with_pipeline
    )
    if not space.fewest:
        return full.counted(count(full)), None
    idle = idle_meshes(space, facts)
    all_meshes = full.joined(idle)
    all_meshes = all_meshes.counted(count(all_meshes))
    rows = np.arange(len(all_meshes))
    return all_meshes.take(rows[: len(full)], illegal=full.illegal), all_meshes.take(
        rows[len(full) :], illegal=idle.illegal
    )


def fastest_first(problem: Problem, parts: Iterable[Space], grid: Grid) -> list[Space]:
    """Sort option parts by the simulated step seconds of `grid` under their options."""
    modules = tuple(
        search_paired_schedules
        for search_paired_schedules in grid.options
        if search_paired_schedules[0] in LADDER
    )

    def seconds(part: Space) -> float:
        """Simulated step seconds of `grid` under the options of a part."""
        return simulate_grid(
            problem, replace(grid, options=in_vocabulary_order((*part.chosen, *modules)))
        ).step_time_s

    return sorted(parts, key=seconds)


def where_options_differ(columns: Mapping[str, IntArray], part: Space, first: Space) -> BoolArray:
    """(rows,) True where every option in which two parts differ has an effect on the mesh.

    Elsewhere both parts have the same plans.
    """
    changed_options = [
        BY_NAME[name] for name, value in part.chosen if (name, value) not in first.chosen
    ]
    differs = np.ones(len(columns["tp"]), dtype=np.bool_)
    for option in changed_options:
        differs &= (
            np.any([columns[axis] > 1 for axis in option.along], axis=0) if option.along else True
        )
    return differs


@dataclass(slots=True)
class _Run:
    """State of the search of one part of a space: its meshes, limits and the results so far."""

    problem: Problem
    space: Space
    facts: GridFacts
    capacity: int
    top: int
    limit: Limit
    memory_half: int
    progress: Progress | None
    found: Searched
    full: MeshRows
    idle: MeshRows | None

    @property
    def most_raw(self) -> int:
        """Most raw members that may be expanded at once within the memory."""
        return int(self.memory_half / RAW_BYTES)

    def search(self, *, behind: Space) -> None:
        """Search the part, counting meshes with the same plans as in part `behind` as repeated."""
        full, idle = self.full, self.idle
        if not self.found.outcome.ranked and len(full) * full.each <= self.most_raw:
            refinement, _ = self.expand(full)
            self.refine(refinement)
            self.found.outcome = merged(self.found.outcome, refinement.outcome, top=self.top)
            if idle is not None:
                self.expand_by_bound(idle)
            self.search_paired_schedules()
            return
        meshes = full if idle is None else full.joined(idle)
        differs = where_options_differ(meshes.columns, self.space, behind)
        self.found.repeated.append(meshes.take(~differs))
        meshes = meshes.take(differs, illegal=meshes.illegal)
        if self.found.outcome.ranked and self.limit.passed():
            self.leave_unexpanded(meshes)
        else:
            self.expand_by_bound(meshes)
        self.search_paired_schedules()

    def expand(self, meshes: MeshRows) -> tuple[Refinement, bool]:
        """Expand meshes into bounded members to refine; also True if memory can keep them."""
        until = self.found.outcome.worst_of(self.top)
        bounded = bound_space(
            self.problem, self.space, self.facts, capacity=self.capacity, meshes=meshes, until=until
        )
        members_kept = sum(
            part.num_members for part in self.found.expanded if part.whole is not None
        )
        fits_in_memory = (
            members_kept + bounded.members.num_members
        ) * MEMBER_BYTES <= self.memory_half
        self.found.expanded.append(
            record_of_members(self.space, meshes, bounded, keep=fits_in_memory)
        )
        return Refinement(
            self.problem, bounded.prepared, bounded.seconds, capacity=self.capacity, top=self.top
        ), fits_in_memory

    def refine(self, refinement: Refinement, *, until: float = np.inf) -> None:
        """Rank members of a set that can be among the best and are bounded below `until`."""
        outcome = self.found.outcome
        best_s = outcome.ranked[0].step_time_s if outcome.ranked else float("inf")
        refinement.run(
            self.limit,
            until=min(until, outcome.worst_of(self.top)),
            best_s=best_s,
            progress=self.progress,
        )

    def search_paired_schedules(self) -> None:
        """Search the schedules that only general plans run, and merge the result."""
        outcome = self.found.outcome
        paired = search_paired(
            self.problem,
            self.space,
            self.facts,
            capacity=self.capacity,
            top=self.top,
            until=outcome.worst_of(self.top),
            limit=self.limit,
        )
        if paired is not None:
            self.found.paired.append(paired)
            self.found.outcome = merged(
                outcome,
                SearchOutcome(ranked=paired.ranked, lower_bound_s=paired.lower_bound_s),
                top=self.top,
            )

    def expand_by_bound(self, meshes: MeshRows) -> None:
        """Expand and refine meshes by ascending bound while they can hold one of the best.

        A set is refined until a mesh that is not expanded or another set has a smaller bound, or to
        its end if memory cannot keep it.
        """
        meshes, bounds = self._bounded_meshes(meshes)
        order, next_mesh, size = np.argsort(bounds, kind="stable"), 0, FIRST_MESHES
        outcome_before, sets = self.found.outcome, list[Refinement]()
        waiting: list[tuple[float, int]] = []
        # A member that is not ranked is in an unexpanded mesh, with a bound of at least
        # `next_mesh_bound`, or in a waiting set, with at least `next_set_bound`. Once both reach
        # the last rank, no member is better.
        while next_mesh < len(order) or waiting:
            outcome = self.found.outcome
            next_mesh_bound, (next_set_bound, set_number) = (
                float(bounds[order[next_mesh]]) if next_mesh < len(order) else np.inf,
                waiting[0] if waiting else (np.inf, -1),
            )
            if min(next_mesh_bound, next_set_bound) >= outcome.worst_of(self.top):
                break
            if self.limit.ends(found=bool(outcome.ranked)):
                outcome.lower_bound_s = min(outcome.lower_bound_s, next_mesh_bound)
                break
            if next_set_bound <= next_mesh_bound:
                heapq.heappop(waiting)
                # A set whose bound equals the next bound is still refined by one step.
                next_bound = min(next_mesh_bound, waiting[0][0] if waiting else np.inf)
                until = max(next_bound, np.nextafter(next_set_bound, np.inf))
            else:
                self._report_progress(outcome, next_mesh_bound, next_mesh, len(order))
                size = max(min(size, self.most_raw // PARTS // meshes.each), 1)
                end = next_mesh + int(
                    np.searchsorted(
                        bounds[order[next_mesh : next_mesh + size]],
                        min(outcome.worst_of(self.top), next_set_bound),
                    )
                )
                refinement, can_wait = self.expand(meshes.take(np.sort(order[next_mesh:end])))
                next_mesh, size, set_number, until = (
                    end,
                    size * 4,
                    len(sets),
                    refinement.least() if can_wait else np.inf,
                )
                sets.append(refinement)
            self.refine(sets[set_number], until=until)
            if sets[set_number].least() < np.inf:
                heapq.heappush(waiting, (sets[set_number].least(), set_number))
            self.found.outcome = reduce(
                partial(merged, top=self.top),
                (refinement_set.outcome for refinement_set in sets),
                outcome_before,
            )
        unexpanded = order[next_mesh:]
        self.found.left.append(
            (meshes.take(unexpanded, illegal=meshes.illegal), bounds[unexpanded], self.space)
        )

    def _bounded_meshes(self, meshes: MeshRows) -> tuple[MeshRows, FloatArray]:
        """Meshes with their lower bounds in seconds, up to the first not bounded in time."""
        expanded = [
            part.whole
            for part in self.found.expanded
            if part.space is self.space and part.whole is not None
        ]
        prepared, until = (
            expanded[0].prepared if expanded else None,
            self.found.outcome.worst_of(self.top),
        )
        chunks = [
            np.arange(at, min(at + MESHES, len(meshes))) for at in range(0, len(meshes), MESHES)
        ]
        bounds = [np.empty(0)]
        for place, rows in enumerate(chunks):
            if self.limit.passed() and (self.found.outcome.ranked or place):
                self.leave_unexpanded(meshes.take(np.arange(rows[0], len(meshes))))
                meshes = meshes.take(np.arange(rows[0]), illegal=meshes.illegal)
                break
            chunk = meshes.take(rows)
            nearest_layers = (
                near_layers(self.problem, self.space, self.facts, chunk.columns)
                if has_experts(self.problem.model)
                else None
            )
            chunk_bounds = mesh_bounds(
                self.problem,
                self.space,
                self.facts,
                chunk,
                known=prepared,
                near=nearest_layers,
                until=until,
            )
            contenders = np.flatnonzero(chunk_bounds < until)
            if len(contenders) and until < np.inf:
                contender_meshes = chunk.take(contenders)
                relaxed = relaxed_bounds(
                    self.problem,
                    self.space,
                    self.facts,
                    contender_meshes,
                    capacity=self.capacity,
                    near=nearest_layers,
                    until=until,
                )
                chunk_bounds[contenders] = np.maximum(chunk_bounds[contenders], relaxed)
            bounds.append(chunk_bounds)
        return meshes, np.concatenate(bounds)

    def leave_unexpanded(self, meshes: MeshRows) -> None:
        """Count meshes as not expanded, under the lower bound that holds for every plan."""
        bound_s = universal_bound(self.problem, self.space.devices)
        self.found.outcome.lower_bound_s = min(self.found.outcome.lower_bound_s, bound_s)
        self.found.left.append((meshes, np.full(len(meshes), bound_s), self.space))

    def _report_progress(
        self, outcome: SearchOutcome, lower_s: float, num_expanded: int, count: int
    ) -> None:
        """Report progress: the best step, the lower bound and the number of meshes expanded."""
        if self.progress is not None:
            best = outcome.ranked[0].step_time_s if outcome.ranked else float("inf")
            self.progress(
                progress_text("search meshes", best_s=best, lower_s=lower_s, limit=self.limit),
                num_expanded,
                count,
            )
