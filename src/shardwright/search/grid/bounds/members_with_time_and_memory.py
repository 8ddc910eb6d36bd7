"""Members of a grid space with lower bounds of their step time and memory."""

from __future__ import annotations

import math

import numpy as np

from shardwright.arrays import BoolArray, FloatArray
from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.search.grid.bounds.bound_kernel_inputs import bound_all
from shardwright.search.grid.bounds.host_memory_bounds import excess_over_hosts, rule_out_over_hosts
from shardwright.search.grid.bounds.member_price_tables import Prepared, prepare, with_lines
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import facts_of
from shardwright.search.grid.bounds.unequal_group_placement_bounds import raise_by_lines
from shardwright.search.grid.members.enumerate_members import (
    Members,
    enumerate_members,
    member_grid,
)
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MeshRows
from shardwright.simulator.prediction import HostMemory, StageMemory
from shardwright.simulator.simulate_plan import footprint_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid

MOST_EXACT = 64
"""Most members whose exact peak memory is computed to find the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Members of a space with the closed-form lower bounds (B0) of time and memory.

    Args:
        seconds: lower bound of each member's step, inf where its memory cannot fit.
        memory: lower bound in bytes of each member's fullest rank.
    """

    members: Members
    prepared: Prepared
    seconds: FloatArray
    memory: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedMembers:
    """Record of a set of meshes that a search expanded into members and bounded.

    Args:
        space: space with one value of each option.
        meshes: meshes of the members.
        num_members: number of legal, distinct members.
        enumerated, illegal, duplicates, infeasible: numbers of combinations of axis values.
        whole: the members with their bounds, None if memory could not keep them.
    """

    space: Space
    meshes: MeshRows
    num_members: int
    enumerated: int
    illegal: int
    duplicates: int
    infeasible: int
    whole: Bounded | None

    @property
    def feasible(self) -> int:
        """Number of members whose memory bound fits."""
        return self.num_members - self.infeasible

    def bounded(self, problem: Problem, facts: GridFacts, *, capacity: float) -> Bounded:
        """The members with their bounds, computed again if they were not kept."""
        return self.whole or bound_space(
            under(problem, self.space.chosen),
            self.space,
            facts,
            capacity=capacity,
            meshes=self.meshes,
        )


def record_of_members(
    space: Space, meshes: MeshRows, bounded: Bounded, *, keep: bool
) -> ExpandedMembers:
    """Record the counts of the expanded members of `meshes`, and the members too if `keep`."""
    members = bounded.members
    return ExpandedMembers(
        space=space,
        meshes=meshes,
        num_members=members.num_members,
        enumerated=members.enumerated,
        illegal=members.illegal,
        duplicates=members.duplicates,
        infeasible=int(np.isinf(bounded.seconds).sum()),
        whole=bounded if keep else None,
    )


def bound_space(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: float,
    meshes: MeshRows | None = None,
    until_s: float = math.inf,
) -> Bounded:
    """Enumerate and bound the members of `space` or of `meshes`; refine bounds below `until_s` s.

    Args:
        capacity: bytes of a device that a plan may fill.
        until_s: seconds; members with unequal groups and a lower bound are bounded line by line.
    """
    members = enumerate_members(problem, space, facts, meshes=meshes)
    prepared = prepare(problem, members)
    seconds, memory = bound_all(problem, prepared, capacity=capacity)
    rule_out_over_hosts(problem, prepared, seconds)
    prepared = with_lines(problem, prepared, members.least_of(seconds) < until_s)
    if prepared.lines is not None:
        raise_by_lines(
            problem, prepared, facts_of(problem, devices=space.devices, capacity=capacity), seconds
        )
    return Bounded(members=members, prepared=prepared, seconds=seconds, memory=memory)


def smallest(
    problem: Problem, bounded: Bounded, *, enough: float = 0.0, most: float = math.inf
) -> tuple[Grid, StageMemory] | None:
    """Member of least exact peak bytes (at most `most`), and its fullest stage; None without one.

    Computes exact peaks in the order of the memory bounds until no other member can be smaller, a
    member needs at most `enough` bytes, or MOST_EXACT were computed. With `most`, only members of
    at most `most` bytes that also fit the host memory of their nodes.
    """
    check_hosts = math.isfinite(most)
    best: tuple[Grid, StageMemory] | None = None
    for place in _least_memory_places(
        bounded,
        np.isfinite(bounded.seconds)
        if check_hosts
        else np.ones(len(bounded.seconds), dtype=np.bool_),
    ):
        bound = math.floor(bounded.memory[place])
        if bound > most or (
            best is not None and (bound >= best[1].reserved or best[1].reserved <= enough)
        ):
            break
        grid = member_grid(bounded.members, place)
        costs = step_costs(problem, grid, bounded.prepared.priced(place))
        order_peak = reserved_bytes(
            problem, order_table(grid, microbatches=microbatches_of(problem, grid)), costs
        ).max()
        if order_peak > most or (best is not None and order_peak >= best[1].reserved):
            continue
        memory, hosts = footprint_of_grid(problem, grid)
        fullest = max(memory, key=lambda s: s.reserved)
        if check_hosts and any(host.lacking for host in hosts):
            continue
        if fullest.reserved <= most and (best is None or fullest.reserved < best[1].reserved):
            best = grid, fullest
    return best


def least_offloaded(
    problem: Problem, bounded: Bounded, *, most: float
) -> tuple[Grid, HostMemory] | None:
    """Member within `most` bytes a device lacking least host memory, and its worst node; or None.

    None if there is no such member. Computes the MOST_EXACT members with the least offloaded bytes
    over all devices.
    """
    excess = excess_over_hosts(problem, bounded.prepared)
    places = np.flatnonzero(bounded.memory <= most)
    best: tuple[Grid, HostMemory] | None = None
    for place in places[np.argsort(excess[places], kind="stable")][:MOST_EXACT].tolist():
        grid = member_grid(bounded.members, place)
        memory, hosts = footprint_of_grid(problem, grid)
        if not hosts or max(item.reserved for item in memory) > most:
            continue
        host = max(hosts, key=lambda item: item.lacking)
        if best is None or host.lacking < best[1].lacking:
            best = grid, host
    return best


def _least_memory_places(bounded: Bounded, is_candidate: BoolArray) -> list[int]:
    """Places of the MOST_EXACT marked members with the least memory bound, ascending."""
    places = np.flatnonzero(is_candidate)
    if len(places) > MOST_EXACT:
        places = places[np.argpartition(bounded.memory[places], MOST_EXACT - 1)[:MOST_EXACT]]
    ordered: list[int] = places[np.lexsort((places, bounded.memory[places]))].tolist()
    return ordered
