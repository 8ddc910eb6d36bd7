"""Search of the schedules that only general plans run, after the grid space.

These schedules overlap pairs of actions, run two lanes, or separate weight gradients. Their members
are the legal members of 1F1B on all devices without recompute, offload or sharding groups (with two
lanes up to ZeRO-1), each under each of these schedules. `bounds.overlapped_schedule_bounds` has the
lower bounds; members below them are simulated.
"""

from __future__ import annotations

import heapq
from dataclasses import field, replace

import numpy as np

from shardwright.cost.step.strategy_rank_bytes import step_bytes_before_ordering
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.cost.tables.pipeline_chunk_layout import layout_of
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.schedules.check_grid_schedule_exists import order_violations
from shardwright.search.grid.best_first_search import (
    SearchOutcome,
    Simulated,
    SimulatedMember,
    member_of,
)
from shardwright.search.grid.bounds.member_price_tables import Prepared, prepare
from shardwright.search.grid.bounds.overlapped_schedule_bounds import (
    counted_rank_rows,
    kernel_seconds_per_rank,
    memory_bound,
    path_bound,
    row_bounds,
)
from shardwright.search.grid.members.enumerate_members import (
    Members,
    enumerate_members,
    member_grid,
)
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.search_time_limit import Limit
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(slots=True)
class PairedSearch:
    """Ranked members, counts by fate and lower bound of a search of overlapped schedules.

    `lower_bound_s` bounds every member that is not ranked; `fitting` are all simulated members.
    """

    ranked: list[Simulated] = field(default_factory=list)
    fitting: list[SimulatedMember] = field(default_factory=list)
    enumerated: int = 0
    illegal: int = 0
    infeasible: int = 0
    bounded_b0: int = 0
    bounded_b1: int = 0
    lower_bound_s: float = float("inf")

    @property
    def simulated(self) -> int:
        """Number of members that were simulated and fit."""
        return len(self.fitting)


def _overlapped_part(space: Space) -> Space | None:
    """The part of `space` that overlapped schedules search, or None if the part is empty.

    The part has the 1F1B members with several stages and without recompute, offload or sharding
    groups, and the overlapped schedules whose number of chunks a rank is in the space.
    """
    chunks = space.of("vpp")
    space = replace(
        space, paired=tuple(name for name in space.paired if grid_schedule(name).chunks in chunks)
    )
    required_values = {
        "recompute": ("none",),
        "recompute_layers": (0,),
        "offload": (0,),
        "shard": (0,),
    }
    values = {
        axis: tuple(v for v in axis_values if v in required_values.get(axis, axis_values))
        for axis, axis_values in space.values
    }
    # Lanes of two directions shard over the holders of both, and what each microbatch gathers with
    # them: those have no bound here yet.
    deepest_zero = 1 if any(grid_schedule(name).lanes > 1 for name in space.paired) else 3
    values["schedule"], values["vpp"] = ("1f1b",), (1,)
    values["zero"] = tuple(v for v in values["zero"] if int(v) <= deepest_zero)
    values["pp"] = tuple(v for v in values["pp"] if int(v) > 1)
    if not space.paired or space.first or space.last or not all(values.values()):
        return None
    return replace(space, values=tuple((axis, values[axis]) for axis, _ in space.values), fewest=0)


def _rescheduled_grid(members: Members, name: str, place: int) -> Grid:
    """The grid of a member with schedule `name` and that schedule's chunks a rank as vpp."""
    return replace(member_grid(members, place), schedule=name, vpp=grid_schedule(name).chunks)


def search_paired(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: float,
    top: int,
    until_s: float,
    limit: Limit,
) -> PairedSearch | None:
    """Rank the `top` overlapped-schedule members below `until_s` seconds; None if `space` has none.

    None if the space has no such member.

    Args:
        problem: problem under the options of `space`, which has one value of each.
        until_s: step seconds of the last known rank.
    """
    part = _overlapped_part(space)
    if part is None:
        return None
    space = part
    members = enumerate_members(problem, part, facts)
    result = PairedSearch(enumerated=members.num_members * len(space.paired))
    if not members.num_members:
        return result
    prepared = prepare(problem, members)
    outer = members.outer_of_member()
    kernel_seconds = (
        kernel_seconds_per_rank(problem, prepared) * members.outers.columns["microbatches"]
    )[outer]
    bounds = np.stack(
        [
            row_bounds(problem, prepared, name, kernel_seconds, until_s=until_s)
            for name in space.paired
        ],
        axis=1,
    ).reshape(-1)
    order = np.argsort(bounds, kind="stable")
    heap: list[tuple[float, int, Grid]] = []
    at = 0
    # Members wait under the bound along their rows, then under the longest path of their order. The
    # least of both bounds all that were not simulated.
    while heap or at < len(order):
        step_to_beat = min(until_s, SearchOutcome(ranked=result.ranked).worst_of(top))
        lower_bound_s = min(
            float(bounds[order[at]]) if at < len(order) else float("inf"),
            heap[0][0] if heap else float("inf"),
        )
        if lower_bound_s >= step_to_beat or (limit.passed() and step_to_beat < float("inf")):
            result.lower_bound_s = lower_bound_s
            break
        if heap and heap[0][0] <= lower_bound_s:
            _simulate_and_rank(
                problem, heapq.heappop(heap)[2], capacity=capacity, top=top, result=result
            )
            continue
        (place, name), at = divmod(int(order[at]), len(space.paired)), at + 1
        grid = _rescheduled_grid(members, space.paired[name], place)
        bound = _member_bound(
            problem, prepared, place, grid, facts, capacity=capacity, result=result
        )
        if bound is not None:
            heapq.heappush(heap, (max(bound, lower_bound_s), at, grid))
    result.bounded_b0, result.bounded_b1 = len(order) - at, len(heap)
    return result


def _simulate_and_rank(
    problem: Problem, grid: Grid, *, capacity: float, top: int, result: PairedSearch
) -> None:
    """Simulate a grid, count it in `result`, and rank it among the `top` if it fits in memory."""
    simulated = Simulated(grid=grid, result=simulate_grid(problem, grid))
    if not simulated.result.fits_in(capacity):
        result.infeasible += 1
        return
    result.fitting.append(member_of(simulated))
    result.ranked = sorted([*result.ranked, simulated], key=lambda s: s.step_time_s)[:top]


def _member_bound(
    problem: Problem,
    prepared: Prepared,
    place: int,
    grid: Grid,
    facts: GridFacts,
    *,
    capacity: float,
    result: PairedSearch,
) -> float | None:
    """Lower bound of a member's step seconds; None, counted, if it is illegal or too large."""
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    if violations(grid, facts=facts, general=True) or order_violations(
        grid, microbatches=microbatches
    ):
        result.illegal += 1
        return None
    lanes = grid_schedule(grid.schedule).lanes
    rows = counted_rank_rows(grid.schedule, grid.pp, microbatches // lanes)
    priced = replace(
        prepared.priced(place), layout=layout_of(problem.model, pp=grid.pp, vpp=grid.vpp)
    )
    if (
        memory_bound(problem, rows, step_bytes_before_ordering(problem, grid, priced), lanes=lanes)
        > capacity
    ):
        result.infeasible += 1
        return None
    return path_bound(problem, grid, microbatches // lanes, step_costs(problem, grid, priced))
