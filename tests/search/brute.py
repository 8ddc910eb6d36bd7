"""Brute force: every raw member of a space by itertools, judged by the rules of grids alone,
simulated one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.cost.bounds.longest_path import path_seconds
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.grid_rows_and_memory_settings import TableRows
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.cost.tables.pipeline_chunk_layout import layout_of
from shardwright.errors import StrategyError
from shardwright.program.training_problem import Problem
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.cost.prices import rows_of


def raw_grids(space: Space, batch: int) -> Iterator[Grid | None]:
    """A grid of every raw member, in the space's order; None where the values contradict one
    another."""
    whole = [d for d in range(1, batch + 1) if batch % d == 0]
    axes, own = (space.of(axis) for axis, _ in space.values), dict(space.runtime_options)
    for *values, modules, dp in itertools.product(
        *axes, space.modules, range(1, space.devices + 1)
    ):
        member = dict(zip((axis for axis, _ in space.values), values, strict=True))
        used = int(member["tp"]) * int(member["cp"]) * int(member["pp"]) * dp
        idle = (
            space.fewest
            and space.fewest <= used < space.devices
            and used % space.node == 0
            and dp in whole
        )
        if not (used == space.devices or idle) or (space.dp and dp not in space.dp):
            continue
        if member["recompute"] != "none" and any(
            value == "on" and own.get(name) != "on" for name, value in modules
        ):
            yield None
            continue
        try:
            yield Grid(
                options=modules,
                tp=int(member["tp"]),
                sp=bool(member["sp"]),
                cp=int(member["cp"]),
                ulysses=int(member["ulysses"]),
                gather=bool(member["gather"]),
                ep=int(member["ep"]),
                etp=int(member["etp"]),
                dp=dp,
                pp=int(member["pp"]),
                vpp=int(member["vpp"]),
                microbatch=int(member["mbs"]),
                zero=int(member["zero"]),
                shard=int(member["shard"]),
                recompute=Recompute(str(member["recompute"])),
                recompute_layers=int(member["recompute_layers"]),
                offload=int(member["offload"]),
                schedule=str(member["schedule"]),
                first=space.first,
                last=space.last,
                order=tuple(str(member["order"]).split("-")),
            )
        except StrategyError:
            yield None


def whole_groups(grid: Grid) -> bool:
    """The first `shard` holders, counted by device, are a box of the cp x dp plane: groups of
    holders that a communicator can have."""
    if not grid.zero or not grid.shard:
        return True
    strides = grid.strides()
    holders = sorted(
        (c * strides["cp"] + d * strides["dp"], c, d)
        for c in range(grid.cp)
        for d in range(grid.dp)
    )
    group = [(c, d) for _, c, d in holders[: grid.shard]]
    rows, columns = {c for c, _ in group}, {d for _, d in group}
    return (
        len(rows) * len(columns) == len(group)
        and grid.cp % len(rows) == 0
        and grid.dp % len(columns) == 0
    )


def runs(grid: Grid, problem: Problem) -> bool:
    """The runtime can do it, and sharding groups are whole."""
    runtime = problem.runtime
    return (
        grid.zero in runtime.zero_stages
        and (grid.pp == 1 or grid.zero <= runtime.zero_with_pipeline)
        and grid.schedule in runtime.schedules
        and whole_groups(grid)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Raw members by fate; `grids`: the legal, distinct ones by their representative."""

    enumerated: int
    illegal: int
    duplicates: int
    grids: dict[Grid, Grid]


def count(problem: Problem, space: Space, facts: GridFacts) -> Counted:
    enumerated = illegal = duplicates = 0
    grids: dict[Grid, Grid] = {}
    for grid in raw_grids(space, problem.job.global_batch):
        enumerated += 1
        if grid is None or violations(grid, facts=facts) or not runs(grid, problem):
            illegal += 1
            continue
        meant = canonical(grid, facts=facts)
        if meant in grids:
            duplicates += 1
        else:
            grids[meant] = grid
    return Counted(enumerated=enumerated, illegal=illegal, duplicates=duplicates, grids=grids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A member priced alone: bytes of its fullest class of devices, B1 and S in seconds."""

    grid: Grid
    need: int
    path_s: float
    step_s: float


def judge(problem: Problem, grids: Iterable[Grid]) -> list[Judged]:
    """Price, walk and simulate each; the tables have one row a grid, in this order."""
    listed = list(grids)
    if not listed:
        return []
    rows = rows_of(listed)
    sets = tuple(dict.fromkeys(grid.options for grid in listed))
    layers = layer_table(problem, rows, modules=sets)
    meshes = mesh_table(
        problem, rows, np.array([g.shard or g.dp * g.cp for g in listed], dtype=np.int64)
    )
    result = []
    for row, grid in enumerate(listed):
        layout = layout_of(
            problem.model, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last
        )
        priced = TableRows(
            layers=layers,
            layer_row=row + sets.index(grid.options) * len(listed),
            meshes=meshes,
            mesh_row=row,
            layout=layout,
        )
        path = path_seconds(problem, grid, step_costs(problem, grid, priced))
        done = simulate_grid(problem, grid)
        result.append(Judged(grid=grid, need=done.need, path_s=path, step_s=done.step_time_s))
    return result
