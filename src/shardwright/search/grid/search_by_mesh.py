"""Search of a grid space mesh by mesh, if the space is large or leaves devices idle.

A mesh is expanded into members only if the bound of all its members is below the best known step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from shardwright.arrays import BoolArray
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER
from shardwright.search.grid.members.grid_search_space import Space, supported_option_parts
from shardwright.search.grid.members.legal_degrees_and_axis_orders import (
    MeshRows,
    full_meshes,
    idle_meshes,
)
from shardwright.search.grid.members.member_counts_by_mesh import count_members
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.search.grid.search_meshes_for_fixed_runtime_options import PartSearch
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages
from shardwright.strategy.grid.parallelism_grid import Grid


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
    """Search each option part of `space`, on all and on fewer devices; rank the `top` fastest.

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
    first, *others = parts = supported_option_parts(problem, space)

    def meshes_of(part_problem: Problem) -> tuple[MeshRows, MeshRows | None]:
        """Meshes of a part on all devices, and with idle devices (None if the space has none)."""
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
        """Meshes of a part that `keeps` selects: on all devices, and with idle ones or None."""
        full, idle = meshes_of(part_problem)
        if keeps is None:
            return full, idle
        selected = keeps(full if idle is None else full.joined(idle))
        return full.take(selected[: len(full)]), None if idle is None else idle.take(
            selected[len(full) :]
        )

    def run(part: Space) -> PartSearch:
        """Prepare the search of one part of the space."""
        part_problem = under(problem, part.chosen)
        return PartSearch(
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

    run(first).search(first_part=first)
    if others and found.outcome.ranked:
        others = fastest_first(problem, others, found.outcome.ranked[0].grid)
    for part in others:
        run(part).search(first_part=first)
    return found


@lru_cache(maxsize=4)
def _counted_meshes(
    space: Space, facts: GridFacts, zero_stages: tuple[int, ...], zero_with_pipeline: int
) -> tuple[MeshRows, MeshRows | None]:
    """Meshes on all devices and with idle devices (None if not in `space`), with member counts."""
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


def fastest_first(problem: Problem, parts: Sequence[Space], grid: Grid) -> list[Space]:
    """Sort option parts by ascending simulated step seconds of `grid` under their options."""
    if len(parts) < 2:
        return list(parts)
    modules = tuple(option for option in grid.options if option[0] in LADDER)

    def seconds(part: Space) -> float:
        """Simulated step seconds of `grid` under the options of a part."""
        return simulate_grid(
            problem, replace(grid, options=in_vocabulary_order((*part.chosen, *modules)))
        ).step_time_s

    return sorted(parts, key=seconds)
