"""Parts of a market that compositions are looked for in alone."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.search.mixed.pipelines.priced_pipelines import Market


def parts_of(market: Market) -> tuple[Market, ...]:
    """The market of all pools, whose tasks take longest and begin first; those of the fastest
    pools, from two on, and of each zone: what helps on paper may lie behind a slow link, or be so
    slow that it only makes sums longer.
    """
    ground = market.ground
    fastest = np.argsort(-weights_of(market), kind="stable").tolist()
    groups = ground.problem.cluster.groups
    zones = [
        [pool.group for pool in ground.table.pools if groups[pool.group].zone == zone]
        for zone in ground.problem.cluster.zones
    ]
    some = [
        *(fastest[:many] for many in range(2, len(fastest))),
        *(zone for zone in zones if len(zone) > 1),
    ]
    named = dict.fromkeys(tuple(sorted(pools)) for pools in some if len(pools) < len(fastest))
    return (market, *(market.within(pools) for pools in sorted(named, key=len, reverse=True)))


def weights_of(market: Market) -> FloatArray:
    """(pools,) layers a second of a device of each pool, by its fastest row."""
    table = market.ground.table
    rate = table.mbs / (table.seconds[:, 0].sum(axis=1) * table.size)
    return np.array([rate[table.pool == pool].max() for pool in range(len(table.pools))])
