"""Subsets of pipelines, by the pools that they lie on, that plans are composed of separately."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines


def parts_of(pipelines: PricedPipelines) -> tuple[PricedPipelines, ...]:
    """The pipelines of all pools, whose tasks take longest and begin first; of the fastest pools,
    from two on; and of each zone. A pool that helps the bound may lie behind a slow link, or be so
    slow that it only makes gradient reductions longer.
    """
    stage_costs = pipelines.stage_costs
    fastest = np.argsort(-weights_of(pipelines), kind="stable").tolist()
    groups = stage_costs.problem.cluster.groups
    zones = [
        [pool.group for pool in stage_costs.table.pools if groups[pool.group].zone == zone]
        for zone in stage_costs.problem.cluster.zones
    ]
    some = [
        *(fastest[:many] for many in range(2, len(fastest))),
        *(zone for zone in zones if len(zone) > 1),
    ]
    named = dict.fromkeys(tuple(sorted(pools)) for pools in some if len(pools) < len(fastest))
    return (pipelines, *(pipelines.within(pools) for pools in sorted(named, key=len, reverse=True)))


def weights_of(pipelines: PricedPipelines) -> FloatArray:
    """(pools,) layers a second of a device of each pool, by its fastest row."""
    table = pipelines.stage_costs.table
    rate = table.mbs / (table.seconds[:, 0].sum(axis=1) * table.size)
    return np.array([rate[table.pool == pool].max() for pool in range(len(table.pools))])
