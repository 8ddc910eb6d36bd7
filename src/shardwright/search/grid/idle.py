"""Members that leave devices idle: crossed only where the bound of their mesh is below what is known to be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.program.problem import Problem
from shardwright.search.grid.best_first import Outcome, merged, refine
from shardwright.search.grid.bounded import Bounded, bound_space
from shardwright.search.grid.mesh_bounds import mesh_bounds
from shardwright.search.grid.meshes import Meshes, idle_meshes
from shardwright.search.grid.space import Space
from shardwright.search.limit import Limit
from shardwright.strategy.grid.rules import GridFacts

Progress = Callable[[str, int, int], None]
FIRST_MESHES = 64
"""Crossed together at first; then four times as many, as a good plan on few devices rules out most others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search of a whole space.

    Args:
        crossed: the members on all devices, then those of idle meshes. left: the other idle meshes, none of which has a member below its
            `left_s` seconds, inf where none of its members is legal. outcome: of refining what was crossed.
    """

    crossed: tuple[Bounded, ...]
    left: Meshes
    left_s: FloatArray
    outcome: Outcome


def with_idle(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    full: Bounded,
    outcome: Outcome,
    *,
    capacity: float,
    top: int,
    limit: Limit,
    progress: Progress | None = None,
) -> Searched:
    """`outcome` of the members on all devices, with those of the idle meshes that can be among the `top` best."""
    meshes = idle_meshes(space, facts)
    bounds = mesh_bounds(problem, space, facts, meshes, known=full.prepared, until=outcome.worst_of(top))
    order, at, size = np.argsort(bounds, kind="stable"), 0, FIRST_MESHES
    crossed = [full]
    while at < len(order):
        until, least = outcome.worst_of(top), float(bounds[order[at]])
        if least >= until:
            break
        if limit.passed() and outcome.ranked:
            outcome.lower_bound_s = min(outcome.lower_bound_s, least)
            break
        end = at + int(np.searchsorted(bounds[order[at : at + size]], until))
        some = bound_space(problem, space, facts, capacity=capacity, meshes=meshes.take(np.sort(order[at:end])))
        found = refine(problem, some.prepared, some.seconds, capacity=capacity, top=top, until=until, limit=limit, progress=progress)
        crossed.append(some)
        outcome, at, size = merged(outcome, found, top=top), end, size * 4
    rest = order[at:]
    return Searched(crossed=tuple(crossed), left=replace(meshes.take(rest), illegal=meshes.illegal), left_s=bounds[rest], outcome=outcome)
