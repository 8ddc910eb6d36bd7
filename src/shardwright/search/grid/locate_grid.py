"""The place of one grid in a space, or in the certificate of its search."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.grid_seconds import step_costs
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem, under
from shardwright.runtime.runtime_options import in_vocabulary_order
from shardwright.search.grid.bounds.bounded_space import Bounded, bound_space
from shardwright.search.grid.bounds.pipeline_line_bounds import member_path
from shardwright.search.grid.members.declared_space import AXES, Space, Value, parts_of
from shardwright.search.grid.members.device_meshes import full_meshes, idle_meshes
from shardwright.search.grid.members.member_arrays import member_grid
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.grid_rules import GridFacts, canonical


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
class Placed:
    """The fate of a strategy in a search, and the reason.

    Args:
        fate: what became of it.
        reason: in words.
        bound_s: its step takes at least so many seconds (0 = nothing was bounded).
    """

    fate: Fate
    reason: str
    bound_s: float = 0.0


def placed_in(
    problem: Problem, space: Space, facts: GridFacts, grid: Grid, *, capacity: int, known_s: float
) -> Placed:
    """The place of a legal `grid` in a search of `space`, by the bounds that the search uses.

    Args:
        capacity: bytes of a device that a plan may fill.
        known_s: step of the last strategy that the search ranked: what takes longer is bounded
            away.
    """
    part, missing = _space_of(space, grid, facts)
    one = _part_of(problem, part, grid) if part is not None else None
    if one is None:
        return Placed(
            fate=Fate.OUTSIDE,
            reason=", ".join(missing) or "the space has not these options of the runtime",
        )
    problem = under(problem, one.chosen)
    meshes = full_meshes(one, facts) if grid.devices == one.devices else idle_meshes(one, facts)
    bounded = bound_space(problem, one, facts, capacity=capacity, meshes=meshes)
    if not len(bounded.seconds):
        return Placed(fate=Fate.OUTSIDE, reason="the search leaves this combination out")
    bound = float(bounded.seconds[0])
    if math.isinf(bound):
        return Placed(
            fate=Fate.INFEASIBLE,
            reason="a lower bound of its memory is more than a device may fill",
        )
    if bound >= known_s:
        return Placed(
            fate=Fate.BOUNDED, reason="a bound of its work and its pipeline", bound_s=bound
        )
    return _refined(problem, bounded, bound, capacity=capacity, known_s=known_s)


def _refined(
    problem: Problem, bounded: Bounded, bound: float, *, capacity: int, known_s: float
) -> Placed:
    """The fate of a member whose first bound is below the best: infeasible if its order needs too
    much memory, bounded if the longest path takes as long as the best, else simulated.
    """
    grid = member_grid(bounded.members, 0)
    costs = step_costs(problem, grid, bounded.prepared.priced(0))
    table = order_table(grid, microbatches=microbatches_of(problem, grid))
    if reserved_bytes(problem, table, costs).max() > capacity:
        return Placed(
            fate=Fate.INFEASIBLE,
            reason="its order needs more memory than a device may fill",
            bound_s=bound,
        )
    path = max(member_path(problem, bounded.prepared, 0, grid, costs), bound)
    fate = Fate.BOUNDED if path >= known_s else Fate.SIMULATED
    return Placed(fate=fate, reason="the longest path through its order", bound_s=path)


def _space_of(space: Space, grid: Grid, facts: GridFacts) -> tuple[Space | None, tuple[str, ...]]:
    """The part of `space` that has `grid` alone; None, and the value that the space lacks, where
    it does not have it.
    """
    plain = canonical(grid, facts=facts)
    wanted, also = _values(plain), _values(grid)
    found: dict[str, Value] = {}
    missing: list[str] = []
    for axis in AXES:
        has = space.of(axis)
        if axis == "order":
            same = [
                o
                for o in space.orders
                if canonical(replace(plain, order=o), facts=facts).order == plain.order
            ]
            found[axis] = "-".join(same[0]) if same else ""
        else:
            found[axis] = wanted[axis] if wanted[axis] in has else also[axis]
        if found[axis] not in has:
            missing.append(f"{axis} {wanted[axis]} is not among {', '.join(map(str, has))}")
    fewest = space.fewest or space.devices
    if plain.devices < fewest or (plain.devices % space.node and plain.devices > space.node):
        missing.append(
            f"{plain.devices} devices are not whole nodes of {space.node}, {fewest} to"
            f" {space.devices} devices"
        )
    if space.dp and plain.dp not in space.dp:
        missing.append(f"dp {plain.dp} is not among {', '.join(map(str, space.dp))}")
    missing += [
        f"{end} {getattr(plain, end) or 'as the rest'} is not"
        f" {getattr(space, end) or 'as the rest'}"
        for end in ("first", "last")
        if getattr(plain, end) != getattr(space, end)
    ]
    missing += ["layers by number are not searched"] if plain.layers else []
    missing += ["slices are not searched"] if plain.slices > 1 else []
    missing += ["layers in host memory are not searched"] if plain.host else []
    if missing:
        return None, tuple(missing)
    return replace(space, values=tuple((axis, (found[axis],)) for axis in AXES), dp=(plain.dp,)), ()


def _part_of(problem: Problem, space: Space, grid: Grid) -> Space | None:
    """The part of `space` with the options of `grid`; None where there is none, or has these
    modules with other recompute alone.
    """
    wanted = under(problem, grid.options).runtime
    beside = zip(space.modules, space.beside_recompute, strict=True)
    sets = [
        modules
        for modules, any_recompute in beside
        if any_recompute or grid.recompute is Recompute.NONE
    ]
    for row in parts_of(problem, space):
        for modules in sets:
            if under(problem, in_vocabulary_order((*row.chosen, *modules))).runtime == wanted:
                return replace(row, modules=(modules,))
    return None


def _values(grid: Grid) -> dict[str, Value]:
    """The value of each axis of the space that a grid has."""
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
