"""Strategies and clusters side by side, with what training costs on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.api import grids, simulations
from shardwright.api.mixed import plan_mixed
from shardwright.api.problems import Method, Progress, method_of, problem_of
from shardwright.cost.spending import usd_per_hour
from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog.prices import cluster_prices
from shardwright.search.compared import Compared
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation


def compare(
    request: Request,
    *,
    clusters: Sequence[str],
    strategies: Sequence[str] = (),
    tokens: float = 0.0,
    prices: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> tuple[Compared, ...]:
    """Every strategy on every cluster, simulated; without strategies the best plan of each cluster.

    Args:
        request: whatever all have in common; its cluster is not looked at. tokens: to be trained on; 0 = not said.
        prices: dollars a device-hour, see `hardware.catalog.prices.cluster_prices`.

    Raises:
        ShardwrightError: as `grids.plan` and `simulations.simulation` do; the message names the cluster where there are several.
    """
    found = []
    for cluster in clusters:
        one = replace(request, cluster=cluster)
        try:
            found += [simulations.simulation(one, strategy=text) for text in strategies] or [_best(one, progress)]
        except ShardwrightError as error:
            error.message = f"{cluster}: {error.message}" if len(clusters) > 1 else error.message
            raise
    return tuple(_compared(one, tokens=tokens, prices=prices or {}) for one in found)


def _best(request: Request, progress: Progress | None) -> Simulation:
    if method_of(request) is Method.MIXED:
        mixed = plan_mixed(replace(request, top=0), progress=progress).simulation
        assert mixed is not None
        return mixed
    answer = grids.plan(replace(request, top=0), progress=progress, sensitive=False)
    assert answer.request is not None
    return Simulation(request=answer.request, name="", grid=answer.grid, plan=None, prediction=answer.prediction)


def _compared(one: Simulation, *, tokens: float, prices: Mapping[str, float]) -> Compared:
    cluster = problem_of(one.request).cluster
    known, spending = cluster_prices(cluster, prices), one.prediction.spending
    paid = spending.paid_devices if spending else tuple(group.count * group.kind.num_devices for group in cluster.groups)
    hourly = usd_per_hour(paid, [price.usd_per_hour for price in known]) if known else None
    return Compared(simulation=one, devices=cluster.num_devices, prices=known, usd_per_hour=hourly, tokens=tokens)
