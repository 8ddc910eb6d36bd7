"""Days and dollars of a training run under a simulated strategy."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.request_to_problem import problem_of
from shardwright.cost.step.dollars_and_joules import usd_per_hour
from shardwright.hardware.catalog.list_prices import cluster_prices
from shardwright.search.comparison_row import Compared
from shardwright.search.simulated_strategy import Simulation


def with_training_cost(
    simulation: Simulation, *, tokens: float, prices: Mapping[str, float]
) -> Compared:
    """Add seconds and dollars of training on `tokens` (0 = not known) to a simulated strategy.

    Args:
        prices: dollars a device-hour, see `hardware.catalog.list_prices.cluster_prices`.
    """
    cluster = problem_of(simulation.request).cluster
    device_prices, spending = cluster_prices(cluster, prices), simulation.prediction.spending
    paid = (
        spending.paid_devices
        if spending
        else tuple(group.count * group.kind.num_devices for group in cluster.groups)
    )
    hourly = (
        usd_per_hour(paid, [price.usd_per_hour for price in device_prices])
        if device_prices
        else None
    )
    return Compared(
        simulation=simulation,
        devices=cluster.num_devices,
        prices=device_prices,
        usd_per_hour=hourly,
        tokens=tokens,
    )
