"""Subsets of pipelines, by the device pools that they use; plans are composed of each."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines


def pool_subsets(pipelines: PricedPipelines) -> tuple[PricedPipelines, ...]:
    """Subsets of the pipelines: all pools, the fastest two or more pools, and each zone.

    A pool that helps the bound may lie behind a slow link, or be so slow that it only makes
    gradient reductions longer. The largest subset comes first, as its tasks take longest.
    """
    stage_costs = pipelines.stage_costs
    fastest = np.argsort(-pool_layer_rates(pipelines), kind="stable").tolist()
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


def pool_layer_rates(pipelines: PricedPipelines) -> FloatArray:
    """(pools,) layers x samples a second of one device of each pool, by its fastest table row."""
    table = pipelines.stage_costs.table
    rate = table.mbs / (table.seconds[:, 0].sum(axis=1) * table.size)
    return np.array([rate[table.pool == pool].max() for pool in range(len(table.pools))])
