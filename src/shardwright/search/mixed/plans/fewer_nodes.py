"""Plans on fewer nodes of a mixed cluster: the best is searched for as if the other nodes did not
exist, so that an answer with more nodes is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster import Cluster
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.plans.simulated_plans import Standing
from shardwright.search.mixed.plans.write_plan import MixedPlan, general_plan
from shardwright.search.mixed.stages.frame_terms import StageCosts, first_frames
from shardwright.search.mixed.stages.stage_meshes import StageMesh
from shardwright.search.mixed.stages.stage_tables import StageTable

Search = Callable[[Problem], tuple[Standing, dict[Options, StageCosts]]]
"""The search of a cluster, and the stage costs of each set of options."""


def counts_of(cluster: Cluster, *, most: int) -> Iterator[tuple[int, ...]]:
    """Nodes of each group on fewer nodes, most first, as long as there are two groups or more; none
    of clusters that have too many.
    """
    whole = tuple(group.count for group in cluster.groups)
    if prod(count + 1 for count in whole) > most:
        return
    some = product(*(range(count + 1) for count in whole))
    yield from sorted(
        (one for one in some if one != whole and np.count_nonzero(one) > 1),
        key=lambda one: (-sum(one), one),
    )


def with_counts(cluster: Cluster, counts: tuple[int, ...]) -> Cluster:
    """The cluster with so many nodes of each group; groups of none are left out, and links of zones
    that are empty then.
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
    standing: Standing,
    pipeline_sets: dict[Options, PricedPipelines],
    search: Search,
    effort: Effort,
) -> None:
    """Keep the best plan on fewer nodes where it is faster. Clusters on which prices leave none
    that is are not searched.
    """
    problem = standing.problem
    for counts in counts_of(problem.cluster, most=effort.fewer_node_clusters):
        if standing.ends():
            return
        if all(
            _is_closed(pipelines, counts, standing.best_s) for pipelines in pipeline_sets.values()
        ):
            continue
        try:
            found, stage_costs_of = search(
                replace(problem, cluster=with_counts(problem.cluster, counts))
            )
        except InfeasibleError:
            continue
        for name in ("looked_at", "simulated", "bounded", "infeasible"):
            setattr(standing, name, getattr(standing, name) + getattr(found, name))
        if found.mixed is None or found.best is None or found.best_s >= standing.best_s:
            continue
        options = found.best.options
        stage_costs = (
            pipeline_sets[options].stage_costs
            if options in pipeline_sets
            else StageCosts.of(replace(stage_costs_of[options].problem, cluster=problem.cluster))
        )
        plan = _renamed(
            stage_costs_of[options].table,
            stage_costs.table,
            [place for place, count in enumerate(counts) if count],
            found.mixed,
        )
        standing.attempt(general_plan(stage_costs, plan, options=options), plan)


def _is_closed(pipelines: PricedPipelines, counts: tuple[int, ...], limit_s: float) -> bool:
    """True where prices prove that no plan on so many nodes ends by a limit."""
    pools = pipelines.stage_costs.table.pools
    devices = np.array(
        [count * pool.node for count, pool in zip(counts, pools, strict=True)], dtype=np.float64
    )
    fewer, nodes = replace(pipelines, devices=devices), float(sum(counts))
    frames = (replace(frame, nodes=(0.0, nodes)) for frame in first_frames(pipelines.stage_costs))
    return all(fewer.priced(frame, limit_s)[0].samples < pipelines.batch for frame in frames)


def _renamed(table: StageTable, other: StageTable, pools: list[int], plan: MixedPlan) -> MixedPlan:
    """The plan with the rows of another table. Args: pools: of the other one, which those of the
    first are.
    """

    def key(of: StageTable, row: int, pool: int) -> tuple[int, StageMesh, int, int, int, bool]:
        return (
            pool,
            of.mesh(row),
            int(of.mbs[row]),
            int(of.zero[row]),
            int(of.least[row]),
            row < of.several,
        )

    number = {key(other, row, int(other.pool[row])): row for row in range(len(other))}

    def row_of(row: int) -> int:
        return number[key(table, row, pools[int(table.pool[row])])]

    return MixedPlan(
        lanes=tuple(
            replace(lane, rows=tuple(row_of(row) for row in lane.rows)) for lane in plan.lanes
        )
    )
