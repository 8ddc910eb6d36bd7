"""The fate of one grid in a search: outside the space, infeasible, bounded away or simulated."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.bounds.members_with_time_and_memory import Bounded, bound_space
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.grid.members.grid_search_space import (
    AXES,
    Space,
    Value,
    supported_option_parts,
)
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute


class Fate(StrEnum):
    """The fate of a strategy in a search."""

    BEST = "best"
    RANKED = "ranked"
    SIMULATED = "simulated"
    BOUNDED = "bounded"
    INFEASIBLE = "infeasible"
    ILLEGAL = "illegal"
    OUTSIDE = "outside"
    UNSEARCHED = "unsearched"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedGrid:
    """The fate of a strategy in a search, with the reason.

    Args:
        reason: explanation for the user.
        bound_s: lower bound of the strategy's step time in seconds (0 = no bound was computed).
    """

    fate: Fate
    reason: str
    bound_s: float = 0.0


def placed_in(
    problem: Problem, space: Space, facts: GridFacts, grid: Grid, *, capacity: int, known_s: float
) -> LocatedGrid:
    """Fate of `grid` in a search: outside, infeasible, bounded (by last rank `known_s`), simulated.

    Args:
        capacity: bytes of a device that a plan may fill.
        known_s: step seconds of the last ranked strategy; a grid with a larger bound is bounded
            away.
    """
    axis_part, missing = _part_with_axis_values(space, grid, facts)
    option_part = _part_with_options(problem, axis_part, grid) if axis_part is not None else None
    if option_part is None:
        return LocatedGrid(
            fate=Fate.OUTSIDE,
            reason=", ".join(missing) or "the space has not these options of the runtime",
        )
    problem = under(problem, option_part.chosen)
    meshes = (
        full_meshes(option_part, facts)
        if grid.devices == option_part.devices
        else idle_meshes(option_part, facts)
    )
    bounded = bound_space(problem, option_part, facts, capacity=capacity, meshes=meshes)
    if not len(bounded.seconds):
        return LocatedGrid(fate=Fate.OUTSIDE, reason="the search leaves this combination out")
    bound = float(bounded.seconds[0])
    if math.isinf(bound):
        return LocatedGrid(
            fate=Fate.INFEASIBLE,
            reason="a lower bound of its memory is more than a device may fill",
        )
    if bound >= known_s:
        return LocatedGrid(
            fate=Fate.BOUNDED, reason="a bound of its work and its pipeline", bound_s=bound
        )
    return _fate_after_longest_path(problem, bounded, bound, capacity=capacity, known_s=known_s)


def _fate_after_longest_path(
    problem: Problem, bounded: Bounded, bound: float, *, capacity: int, known_s: float
) -> LocatedGrid:
    """Fate of the first bounded member by exact peak memory, then longest path against `known_s`.

    Infeasible if the order's peak memory exceeds the capacity, bounded if the longest path takes at
    least `known_s` seconds, else simulated.
    """
    grid = member_grid(bounded.members, 0)
    costs = step_costs(problem, grid, bounded.prepared.priced(0))
    table = order_table(grid, microbatches=microbatches_of(problem, grid))
    if reserved_bytes(problem, table, costs).max() > capacity:
        return LocatedGrid(
            fate=Fate.INFEASIBLE,
            reason="its order needs more memory than a device may fill",
            bound_s=bound,
        )
    path = max(member_path(problem, bounded.prepared, 0, grid, costs), bound)
    fate = Fate.BOUNDED if path >= known_s else Fate.SIMULATED
    return LocatedGrid(fate=fate, reason="the longest path through its order", bound_s=path)


def _part_with_axis_values(
    space: Space, grid: Grid, facts: GridFacts
) -> tuple[Space | None, tuple[str, ...]]:
    """Part of `space` with only the axis values and dp of `grid`, and (); or None and reasons."""
    wanted = canonical(grid, facts=facts)
    wanted_values, given_values = axis_values(wanted), axis_values(grid)
    values: dict[str, Value] = {}
    missing: list[str] = []
    for axis in AXES:
        offered = space.of(axis)
        if axis == "order":
            same_orders = [
                o
                for o in space.orders
                if canonical(replace(wanted, order=o), facts=facts).order == wanted.order
            ]
            values[axis] = "-".join(same_orders[0]) if same_orders else ""
        else:
            values[axis] = (
                wanted_values[axis] if wanted_values[axis] in offered else given_values[axis]
            )
        if values[axis] not in offered:
            missing.append(
                f"{axis} {wanted_values[axis]} is not among {', '.join(map(str, offered))}"
            )
    least_devices = space.fewest or space.devices
    if wanted.devices < least_devices or (
        wanted.devices % space.node and wanted.devices > space.node
    ):
        missing.append(
            f"{wanted.devices} devices are not whole nodes of {space.node}, {least_devices} to"
            f" {space.devices} devices"
        )
    if space.dp and wanted.dp not in space.dp:
        missing.append(f"dp {wanted.dp} is not among {', '.join(map(str, space.dp))}")
    missing += [
        f"{end} {getattr(wanted, end) or 'as the rest'} is not"
        f" {getattr(space, end) or 'as the rest'}"
        for end in ("first", "last")
        if getattr(wanted, end) != getattr(space, end)
    ]
    missing += ["layers by number are not searched"] if wanted.layers else []
    missing += ["slices are not searched"] if wanted.slices > 1 else []
    missing += ["layers in host memory are not searched"] if wanted.host else []
    if missing:
        return None, tuple(missing)
    return replace(
        space, values=tuple((axis, (values[axis],)) for axis in AXES), dp=(wanted.dp,)
    ), ()


def _part_with_options(problem: Problem, space: Space, grid: Grid) -> Space | None:
    """The part of `space` with the runtime options and recomputed modules of `grid`, or None.

    None also if the space has these modules only with other values of recompute.
    """
    runtime = under(problem, grid.options).runtime
    module_sets = zip(space.modules, space.beside_recompute, strict=True)
    allowed_modules = [
        modules
        for modules, any_recompute in module_sets
        if any_recompute or grid.recompute is Recompute.NONE
    ]
    for part in supported_option_parts(problem, space):
        for modules in allowed_modules:
            if under(problem, in_vocabulary_order((*part.chosen, *modules))).runtime == runtime:
                return replace(part, modules=(modules,))
    return None


def axis_values(grid: Grid) -> dict[str, Value]:
    """The value of each searched axis in `grid`, by axis name, without dp; switches as 0 or 1."""
    return {
        "tp": grid.tp,
        "cp": grid.cp,
        "pp": grid.pp,
        "order": "-".join(grid.order),
        "ep": grid.ep,
        "etp": grid.etp,
        "sp": int(grid.sp),
        "ulysses": grid.ulysses,
        "gather": int(grid.gather),
        "mbs": grid.microbatch,
        "vpp": grid.vpp,
        "schedule": grid.schedule,
        "zero": grid.zero,
        "shard": grid.shard,
        "recompute": grid.recompute.value,
        "recompute_layers": grid.recompute_layers,
        "offload": grid.offload,
    }
