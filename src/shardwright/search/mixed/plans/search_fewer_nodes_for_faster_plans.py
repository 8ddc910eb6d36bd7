"""Search for plans on fewer nodes of a mixed cluster, as if the other nodes did not exist.

So an answer with more nodes is never slower than one with fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster import Cluster
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, general_plan
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed.stages.stage_cost_table import StageTable
from shardwright.search.mixed.stages.subspaces_and_stage_costs import (
    MixedStageCosts,
    root_subspaces,
)
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import StageMesh

Search = Callable[[Problem], tuple[SearchState, dict[Options, MixedStageCosts]]]
"""Function that searches a cluster; it returns the state and the stage costs by options."""


def smaller_node_counts(cluster: Cluster, *, max_combinations: int) -> Iterator[tuple[int, ...]]:
    """Yield smaller node counts of two groups or more, the most nodes first; none if too many.

    Nothing for clusters with more than `max_combinations` combinations.
    """
    whole = tuple(group.count for group in cluster.groups)
    if prod(count + 1 for count in whole) > max_combinations:
        return
    combinations = product(*(range(count + 1) for count in whole))
    yield from sorted(
        (counts for counts in combinations if counts != whole and np.count_nonzero(counts) > 1),
        key=lambda counts: (-sum(counts), counts),
    )


def with_node_counts(cluster: Cluster, counts: tuple[int, ...]) -> Cluster:
    """The cluster with the given number of nodes in each group.

    Groups without nodes are left out, and links of zones without groups.
    """
    groups = tuple(
        replace(group, count=count)
        for group, count in zip(cluster.groups, counts, strict=True)
        if count
    )
    zones = {group.zone for group in groups}
    links = (
        tuple(link for link in cluster.links if {link.source, link.target} <= zones)
        if len(zones) > 1
        else ()
    )
    return replace(cluster, groups=groups, links=links)


def search_fewer_nodes(
    state: SearchState,
    pipeline_sets: dict[Options, PricedPipelines],
    search: Search,
    effort: Effort,
) -> None:
    """Search clusters with fewer nodes, and keep their best plan where it is faster.

    Clusters for which prices prove that no plan is faster are not searched.
    """
    problem = state.problem
    for counts in smaller_node_counts(problem.cluster, max_combinations=effort.fewer_node_clusters):
        if state.ends():
            return
        if all(
            _rules_out_plans(pipelines, counts, state.best_s)
            for pipelines in pipeline_sets.values()
        ):
            continue
        try:
            smaller_state, stage_costs_of = search(
                replace(problem, cluster=with_node_counts(problem.cluster, counts))
            )
        except InfeasibleError:
            continue
        for name in ("looked_at", "simulated", "bounded", "infeasible"):
            setattr(state, name, getattr(state, name) + getattr(smaller_state, name))
        if (
            smaller_state.mixed is None
            or smaller_state.best is None
            or smaller_state.best_s >= state.best_s
        ):
            continue
        options = smaller_state.best.options
        stage_costs = (
            pipeline_sets[options].stage_costs
            if options in pipeline_sets
            else MixedStageCosts.of(
                replace(stage_costs_of[options].problem, cluster=problem.cluster)
            )
        )
        plan = _renumber_rows(
            stage_costs_of[options].table,
            stage_costs.table,
            [place for place, count in enumerate(counts) if count],
            smaller_state.mixed,
        )
        state.simulate(general_plan(stage_costs, plan, options=options), plan)


def _rules_out_plans(pipelines: PricedPipelines, counts: tuple[int, ...], limit_s: float) -> bool:
    """True where dual prices prove that no plan on the given nodes ends by a limit."""
    pools = pipelines.stage_costs.table.pools
    devices = np.array(
        [count * pool.node for count, pool in zip(counts, pools, strict=True)], dtype=np.float64
    )
    fewer, nodes = replace(pipelines, devices=devices), float(sum(counts))
    subspaces = (
        replace(subspace, nodes=(0.0, nodes)) for subspace in root_subspaces(pipelines.stage_costs)
    )
    return all(
        fewer.priced(subspace, limit_s)[0].samples < pipelines.batch for subspace in subspaces
    )


def _renumber_rows(
    table: StageTable, target: StageTable, pools: list[int], plan: MixedPlan
) -> MixedPlan:
    """The plan with rows of `table` replaced by the rows of `target` with the same keys.

    Args:
        pools: pools of the other table, one for each pool of the first.
    """

    def key(of: StageTable, row: int, pool: int) -> tuple[int, StageMesh, int, int, int, bool]:
        """(pool, mesh, mbs, ZeRO, fewest replicas, several stages), the same in both tables."""
        return (
            pool,
            of.mesh(row),
            int(of.mbs[row]),
            int(of.zero[row]),
            int(of.least[row]),
            row < of.several,
        )

    number = {key(target, row, int(target.pool[row])): row for row in range(len(target))}

    def row_of(row: int) -> int:
        """Row of the target table with the same key."""
        return number[key(table, row, pools[int(table.pool[row])])]

    return MixedPlan(
        lanes=tuple(
            replace(lane, rows=tuple(row_of(row) for row in lane.rows)) for lane in plan.lanes
        )
    )
