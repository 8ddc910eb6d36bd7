"""Search, mesh by mesh, of the part of a grid space with one value of each runtime option."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.grid.best_first_search import Refinement, SearchOutcome, merged
from shardwright.search.grid.bounds.layer_times_with_nearest_placement import near_layers
from shardwright.search.grid.bounds.members_with_time_and_memory import (
    bound_space,
    record_of_members,
)
from shardwright.search.grid.bounds.mesh_bounds import mesh_bounds
from shardwright.search.grid.bounds.mesh_bounds_with_relaxed_options import relaxed_bounds
from shardwright.search.grid.members.grid_search_space import Space, where_options_differ
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MeshRows
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.search.grid.search_overlapped_and_two_lane_schedules import search_paired
from shardwright.search.search_time_limit import Limit, progress_text
from shardwright.search.universal_time_bound import universal_bound
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts

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
class PartSearch:
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

    def search(self, *, first_part: Space) -> None:
        """Search the part; meshes with the same plans as in `first_part` count as repeated."""
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
        differs = where_options_differ(meshes.columns, self.space, first_part)
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
            self.problem,
            self.space,
            self.facts,
            capacity=self.capacity,
            meshes=meshes,
            until_s=until,
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

    def refine(self, refinement: Refinement, *, until_s: float = np.inf) -> None:
        """Rank members of a set that can be among the best and are bounded below `until_s`."""
        outcome = self.found.outcome
        best_s = outcome.ranked[0].step_time_s if outcome.ranked else float("inf")
        refinement.run(
            self.limit,
            until_s=min(until_s, outcome.worst_of(self.top)),
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
            until_s=outcome.worst_of(self.top),
            limit=self.limit,
        )
        if paired is not None:
            self.found.paired.append(paired)
            self.found.outcome = merged(
                outcome,
                SearchOutcome(
                    ranked=paired.ranked,
                    fitting=paired.fitting,
                    lower_bound_s=paired.lower_bound_s,
                ),
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
            self.refine(sets[set_number], until_s=until)
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
        """Meshes bounded before the time limit, and bounds in seconds; others stay unexpanded."""
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
                until_s=until,
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
                    until_s=until,
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
