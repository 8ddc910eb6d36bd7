"""Seconds of sends between pipeline stages of mixed plans, for the fastest relative placement."""

from __future__ import annotations

from math import lcm

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.cost.network.list_stage_edges_of_lane_with_messages import lane_edges
from shardwright.cost.network.networks_of_plan_devices import working_problem
from shardwright.cost.network.stage_transfers import crossing_seconds_by_scale
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.stage_segments import plan_stages, working_devices
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.device_pools import DevicePool
from shardwright.search.mixed.stages.stage_cost_table import StageTable
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import StageMesh, grid_of
from shardwright.strategy.grid.grid_to_plan import MAIN, chunk_items, grid_placements
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Stage


def send_table(problem: Problem, table: StageTable) -> FloatArray:
    """(rows, rows, 2) seconds of sending activations on and gradients back; inf = cannot follow.

    Inf where the microbatch sizes differ or there is no room for both stages. The stages have the
    fastest relative placement.
    """
    pairs, sizes = table.meshes, sorted(set(table.mbs.tolist()))
    seconds_of_pairs = np.full((len(pairs), len(pairs), len(sizes), 2), np.inf)
    if table.layers > 1:
        for source in range(len(pairs)):
            for target in range(len(pairs)):
                for bases in _relative_placements(table, pairs[source], pairs[target]):
                    seconds = _pair_seconds(
                        problem, table, (pairs[source][1], pairs[target][1]), bases, sizes
                    )
                    seconds_of_pairs[source, target] = np.minimum(
                        seconds_of_pairs[source, target], seconds
                    )
    size = np.searchsorted(sizes, table.mbs)
    result = seconds_of_pairs[table.pairs[:, None], table.pairs[None, :], size[:, None]]
    result[table.mbs[:, None] != table.mbs[None, :]] = np.inf
    return result


def _relative_placements(
    table: StageTable, source: tuple[int, StageMesh], target: tuple[int, StageMesh]
) -> list[tuple[int, int]]:
    """(source's, target's first device) in each relative placement: in one node, and in two."""
    (pool, mesh), (second, other_mesh) = (
        (table.pools[source[0]], source[1]),
        (table.pools[target[0]], target[1]),
    )
    if pool.group != second.group:
        return [(pool.first, second.first)]
    return [
        *_placement_in_node(pool, mesh.size, other_mesh.size),
        *([(pool.first, pool.first + pool.node)] if pool.nodes > 1 else []),
    ]


def _placement_in_node(
    pool: DevicePool, source_size: int, target_size: int
) -> list[tuple[int, int]]:
    """(source's, target's first device) in one node, the larger stage first; [] = no room."""
    if source_size + target_size > pool.node:
        return []
    return (
        [(pool.first, pool.first + source_size)]
        if source_size >= target_size
        else [(pool.first + target_size, pool.first)]
    )


def _pair_seconds(
    problem: Problem,
    table: StageTable,
    meshes: tuple[StageMesh, StageMesh],
    bases: tuple[int, int],
    sizes: list[int],
) -> FloatArray:
    """(sizes, 2) s of sending on and back, for replica microbatches of each of `sizes` samples."""
    chunks = chunk_items(
        problem.model,
        chunks=table.pattern.layers((table.layers // 2, table.layers - table.layers // 2)),
    )
    samples, experts = lcm(*(mesh.dp for mesh in meshes)), has_experts(problem.model)
    stages = tuple(
        Stage(
            items=items,
            base=base,
            placements=grid_placements(grid_of(problem, mesh, mbs=samples), experts=experts),
        )
        for items, base, mesh in zip(chunks, bases, meshes, strict=True)
    )
    lane = Lane(name=MAIN, samples=samples, microbatches=1, stages=stages)
    plan = Plan(
        devices=problem.cluster.num_devices,
        lanes=(lane,),
        orders=(NamedOrder(schedule="1f1b", lanes=(MAIN,)),),
    )
    placed = plan_stages(plan, model=problem.model)
    edges = lane_edges(problem, placed[0])
    # Other devices on their nodes may be idle.
    problem = working_problem(problem, working_devices(Same(placed)))
    element = problem.job.activation.bits // 8
    scales = [element * size / samples for size in sizes]
    both_ways = ([e.forward for e in edges], [e.backward for e in edges])
    seconds = [
        [crossing_seconds_by_scale(problem, messages, scales=scales) for messages in way]
        for way in both_ways
    ]
    return np.array([[sum(s[n] for s in way) for way in seconds] for n in range(len(sizes))])
