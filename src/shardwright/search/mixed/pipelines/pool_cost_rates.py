"""Cost rate of each device pool, in dollars or joules a second, and the goal of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, prod
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR, Spending, watts_of
from shardwright.errors import UsageError
from shardwright.hardware.catalog.cloud_instances import find_instance
from shardwright.hardware.catalog.list_prices import GIVE_A_PRICE, NOT_RENTED, list_price
from shardwright.hardware.cluster import Cluster
from shardwright.search.mixed.stages.device_pools import DevicePool
from shardwright.search.search_request import OBJECTIVES

TIME, COST, ENERGY, PARETO = OBJECTIVES
_MOST_RATES: Final = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class PricePerSecond:
    """Cost rates of device pools, in dollars or joules a second.

    Args:
        unit: usd or joules.
        rates: (pools,) units a second of one device.
        sizes: (pools,) devices that are paid together: nodes are rented whole.
    """

    unit: str
    rates: FloatArray
    sizes: IntArray

    def rate(self, used: Sequence[int]) -> float:
        """Dollars a second of whole nodes, or joules of the devices, for `used` devices by pool."""
        return float(self.rates @ (-(-np.array(used) // self.sizes) * self.sizes))

    def round_up(self, rate: float, node_counts: Sequence[int]) -> float:
        """Least dollars or joules a second of whole nodes that is at least `rate`; inf = none.

        The rate itself where there are too many such numbers.

        Args:
            node_counts: (pools,) nodes, or devices where they are taken one by one.
        """
        if isinf(rate) or prod(count + 1 for count in node_counts) > _MOST_RATES:
            return rate
        sums = np.zeros(1)
        for each, count in zip(self.rates * self.sizes, node_counts, strict=True):
            sums = np.unique(np.add.outer(sums, each * np.arange(count + 1)))
        above = sums[sums >= rate * (1 - 1e-6)]
        return float(above[0]) if len(above) else inf

    def step_value(self, spending: Spending) -> float:
        """Dollars or joules of one step."""
        found = spending.usd if self.unit == "usd" else spending.joules
        assert found is not None
        return found


def price_per_second_of(
    cluster: Cluster, pools: tuple[DevicePool, ...], objective: str
) -> PricePerSecond:
    """Cost rates of every pool: watts for energy, else dollars a second; UsageError if unknown.

    Raises:
        UsageError: a pool has no price, or no power limit is known of it.
    """
    sizes = np.array([pool.node for pool in pools], dtype=np.int64)
    if objective == ENERGY:
        watts = watts_of(cluster)
        for pool, limit in zip(pools, watts, strict=True):
            if not limit:
                raise UsageError(
                    f"the power of {pool.name} is not known",
                    hint="--objective cost, with prices behind the devices: :8/2.5usd",
                )
        return PricePerSecond(unit="joules", rates=np.array(watts), sizes=np.ones_like(sizes))
    prices = [cluster.groups[pool.group].price for pool in pools]
    for pool, price in zip(pools, prices, strict=True):
        if not price:
            raise _no_price(cluster, pool)
    return PricePerSecond(unit="usd", rates=np.array(prices) / SECONDS_PER_HOUR, sizes=sizes)


def _no_price(cluster: Cluster, pool: DevicePool) -> UsageError:
    """Create the error that a pool has no price, with a hint on where to state one."""
    group = cluster.groups[pool.group]
    listed, instance = list_price(group.kind), find_instance(group.kind.name)
    name, count = (
        (instance.name, group.count) if instance is not None else (pool.name, pool.devices)
    )
    rented = (
        ""
        if group.kind.accelerator.name not in NOT_RENTED
        else " (no cloud lists a price of it in dollars)"
    )
    dollars, of = (
        (f"{listed.usd_per_hour:.4g}", f" ({listed.of} asks that)")
        if listed is not None
        else ("2.5", rented)
    )
    return UsageError(
        f"the cluster states no price of {pool.name}",
        hint=(
            f"dollars of a device and hour behind it: {name}:{count}/{dollars}usd{of}; or"
            f" {GIVE_A_PRICE}"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Goal of a search: the objective, and an upper limit in dollars an hour on the rent of a plan.

    Args:
        objective: one of `search_request.OBJECTIVES`.
        budget: dollars an hour; inf = no limit.
    """

    objective: str = TIME
    budget: float = inf
