"""Lower bounds of time and memory of every member of a space."""

from __future__ import annotations

import math

import numpy as np

from shardwright.arrays import BoolArray, FloatArray
from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.grid_seconds import step_costs
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem, under
from shardwright.search.grid.bounds.bound_arrays import (
    Prepared,
    bound_all,
    facts_of,
    prepare,
    with_lines,
)
from shardwright.search.grid.bounds.host_memory_bounds import drop_over_hosts, excess_over_hosts
from shardwright.search.grid.bounds.pipeline_line_bounds import raise_by_lines
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.grid.members.device_meshes import Meshes
from shardwright.search.grid.members.member_arrays import Members, enumerate_members, member_grid
from shardwright.simulator.plan_simulation import footprint_of_grid
from shardwright.simulator.prediction import HostMemory, StageMemory
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import GridFacts

MOST_EXACT = 64
"""Members whose exact peak is looked at to find the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A space with B0 of every member, for searching and for tests of the bounds.

    Args:
        seconds: lower bound of each member's step, inf where its memory cannot fit.
        memory: lower bound of its fullest rank, bytes.
    """

    members: Members
    prepared: Prepared
    seconds: FloatArray
    memory: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """Record of a set of members that a search has bounded.

    Args:
        space: with one value of each option.
        meshes: whose members they are.
        num_members: legal and distinct ones.
        enumerated, illegal, duplicates, infeasible: counts.
        whole: the set itself, None where there was no room for it.
    """

    space: Space
    meshes: Meshes
    num_members: int
    enumerated: int
    illegal: int
    duplicates: int
    infeasible: int
    whole: Bounded | None

    @property
    def feasible(self) -> int:
        """Members whose memory bound fits."""
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


def crossed(space: Space, meshes: Meshes, bounded: Bounded, *, keep: bool) -> Crossed:
    """The record of the members of `meshes` in `space`: their counts, and all of them if `keep`."""
    members = bounded.members
    return Crossed(
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
    meshes: Meshes | None = None,
    until: float = math.inf,
) -> Bounded:
    """Enumerate the members of `space` on all devices, or on some `meshes`, and bound them.

    Args:
        capacity: bytes of a device.
        until: seconds; members whose groups lie unlike are looked at line by line where they may be
            faster.
    """
    members = enumerate_members(problem, space, facts, meshes=meshes)
    prepared = prepare(problem, members)
    seconds, memory = bound_all(problem, prepared, capacity=capacity)
    drop_over_hosts(problem, prepared, seconds)
    prepared = with_lines(problem, prepared, members.least_of(seconds) < until)
    if prepared.lines is not None:
        raise_by_lines(
            problem, prepared, facts_of(problem, devices=space.devices, capacity=capacity), seconds
        )
    return Bounded(members=members, prepared=prepared, seconds=seconds, memory=memory)


def smallest(
    problem: Problem, bounded: Bounded, *, enough: float = 0.0, most: float = math.inf
) -> tuple[Grid, StageMemory] | None:
    """The member with the least exact peak, and its fullest stage; None if the space has no
    members, or none of at most `most` bytes.

    Looks at members in order of their bound until none can be smaller, one needs no more than
    `enough` bytes, or MOST_EXACT were seen. With `most`, of members that also fit the host memory
    of their nodes.
    """
    hosted = math.isfinite(most)
    best: tuple[Grid, StageMemory] | None = None
    for place in _by_memory(
        bounded,
        np.isfinite(bounded.seconds) if hosted else np.ones(len(bounded.seconds), dtype=np.bool_),
    ):
        bound = math.floor(bounded.memory[place])
        if bound > most or (
            best is not None and (bound >= best[1].reserved or best[1].reserved <= enough)
        ):
            break
        grid = member_grid(bounded.members, place)
        costs = step_costs(problem, grid, bounded.prepared.priced(place))
        least = reserved_bytes(
            problem, order_table(grid, microbatches=microbatches_of(problem, grid)), costs
        ).max()
        if least > most or (best is not None and least >= best[1].reserved):
            continue
        memory, hosts = footprint_of_grid(problem, grid)
        fullest = max(memory, key=lambda s: s.reserved)
        if hosted and any(host.lacking for host in hosts):
            continue
        if fullest.reserved <= most and (best is None or fullest.reserved < best[1].reserved):
            best = grid, fullest
    return best


def least_offloaded(
    problem: Problem, bounded: Bounded, *, most: float
) -> tuple[Grid, HostMemory] | None:
    """The member of at most `most` bytes a device whose nodes lack least host memory, and the node
    that lacks most; None where there is no such member.

    Looks at the MOST_EXACT members of which all devices together offload least.
    """
    over = excess_over_hosts(problem, bounded.prepared)
    some = np.flatnonzero(bounded.memory <= most)
    best: tuple[Grid, HostMemory] | None = None
    for place in some[np.argsort(over[some], kind="stable")][:MOST_EXACT].tolist():
        grid = member_grid(bounded.members, place)
        memory, hosts = footprint_of_grid(problem, grid)
        if not hosts or max(one.reserved for one in memory) > most:
            continue
        host = max(hosts, key=lambda one: one.lacking)
        if best is None or host.lacking < best[1].lacking:
            best = grid, host
    return best


def _by_memory(bounded: Bounded, among: BoolArray) -> list[int]:
    """The MOST_EXACT members with the least memory bound among those marked in `among`."""
    places = np.flatnonzero(among)
    if len(places) > MOST_EXACT:
        places = places[np.argpartition(bounded.memory[places], MOST_EXACT - 1)[:MOST_EXACT]]
    found: list[int] = places[np.lexsort((places, bounded.memory[places]))].tolist()
    return found
