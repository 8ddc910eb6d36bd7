"""The search of a grid space, mesh by mesh where it is large or leaves devices idle: a mesh is crossed with everything else only where the
bound of all its members is below what is known to be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.program.problem import Problem, under
from shardwright.search.grid.best_first import Outcome, merged, refine
from shardwright.search.grid.bounded import Bounded, bound_space
from shardwright.search.grid.mesh_bounds import mesh_bounds
from shardwright.search.grid.meshes import Meshes, full_meshes, idle_meshes
from shardwright.search.grid.space import Space
from shardwright.search.limit import Limit
from shardwright.search.universal import universal_bound
from shardwright.strategy.grid.rules import GridFacts
from shardwright.units import format_percent, format_seconds

Progress = Callable[[str, int, int], None]
FIRST_MESHES = 64
"""Crossed together at first; then four times as many, as a good plan on few devices rules out most others."""
WHOLE = 10**10
"""Raw members of a set that is crossed at once: some millions are legal, which take seconds and less than a gigabyte."""
MOST_RAW = 2 * 10**9
"""Of the parts of a larger one, between which the clock is looked at."""


@dataclass(slots=True)
class Searched:
    """A search of a whole space.

    Args:
        outcome: of refining what was crossed. crossed: sets of members. left: meshes that were not, none of which has a member below its
            (meshes,) seconds beside it, inf where none of its members is legal; and the part of the space that they are of.
    """

    outcome: Outcome = field(default_factory=Outcome)
    crossed: list[Bounded] = field(default_factory=list)
    left: list[tuple[Meshes, FloatArray, Space]] = field(default_factory=list)


def search(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    top: int,
    limit: Limit | None = None,
    progress: Progress | None = None,
) -> Searched:
    """Bound and refine the members on all devices, then, where the space has them, those that leave devices idle.

    The parts with one value of each option of the runtime come one after another, each against what was reached before.

    Args:
        limit: past it the best so far stands; what was not crossed by then counts with the bound of its mesh.
    """
    found, limit = Searched(), limit or Limit()
    for part in space.rows():
        run = _Run(under(problem, part.chosen), part, facts, capacity, max(top, 1), limit, progress, found)
        full = full_meshes(part, facts)
        if found.outcome.ranked and limit.passed():
            run.leave(full)
        elif len(full) * full.each <= WHOLE:
            run.cross(full)
        else:
            run.in_order(full)
        if part.fewest:
            run.in_order(idle_meshes(part, facts))
    return found


@dataclass(slots=True)
class _Run:
    problem: Problem
    space: Space
    facts: GridFacts
    capacity: int
    top: int
    limit: Limit
    progress: Progress | None
    found: Searched

    def cross(self, meshes: Meshes) -> None:
        """Look at all members of some meshes."""
        some = bound_space(self.problem, self.space, self.facts, capacity=self.capacity, meshes=meshes)
        known = self.found.outcome
        more = refine(
            self.problem,
            some.prepared,
            some.seconds,
            capacity=self.capacity,
            top=self.top,
            until=known.worst_of(self.top),
            limit=self.limit,
            progress=self.progress,
        )
        self.found.crossed.append(some)
        self.found.outcome = merged(known, more, top=self.top)

    def in_order(self, meshes: Meshes) -> None:
        """Cross meshes, those of the least bound first, as long as their members can be among the best."""
        if self.limit.passed() and self.found.outcome.ranked:
            self.leave(meshes)
            return
        same = [part for part in self.found.crossed if part.members.space is self.space]
        known = same[0].prepared if same else None
        until = self.found.outcome.worst_of(self.top)
        bounds = mesh_bounds(self.problem, self.space, self.facts, meshes, known=known, until=until)
        order, at, size = np.argsort(bounds, kind="stable"), 0, FIRST_MESHES
        while at < len(order):
            outcome, least = self.found.outcome, float(bounds[order[at]])
            until = outcome.worst_of(self.top)
            if least >= until:
                break
            if self.limit.passed() and outcome.ranked:
                outcome.lower_bound_s = min(outcome.lower_bound_s, least)
                break
            self._say(outcome, least, at, len(order))
            size = max(min(size, MOST_RAW // meshes.each), 1)
            end = at + int(np.searchsorted(bounds[order[at : at + size]], until))
            self.cross(meshes.take(np.sort(order[at:end])))
            at, size = end, size * 4
        rest = order[at:]
        self.found.left.append((meshes.take(rest, illegal=meshes.illegal), bounds[rest], self.space))

    def leave(self, meshes: Meshes) -> None:
        """Cross none: they count with the bound of any plan whatever."""
        least = universal_bound(self.problem, self.space.devices)
        self.found.outcome.lower_bound_s = min(self.found.outcome.lower_bound_s, least)
        self.found.left.append((meshes, np.full(len(meshes), least), self.space))

    def _say(self, outcome: Outcome, least: float, at: int, count: int) -> None:
        if self.progress is not None:
            best = outcome.ranked[0].step_time_s if outcome.ranked else 0.0
            gap = f": best {format_seconds(best)}, gap {format_percent(max(1 - least / best, 0.0))}" if best else ""
            self.progress(f"search meshes{gap}", at, count)
