"""Comparison of strategies and clusters, with the cost of training on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.api import simulations
from shardwright.api.training import training
from shardwright.api.trials import best_of
from shardwright.errors import ShardwrightError
from shardwright.progress import Progress
from shardwright.search.compared import Compared
from shardwright.search.request import Request


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
        request: whatever all have in common; its cluster is not looked at.
        tokens: to be trained on; 0 = not said.
        prices: dollars a device-hour, see `hardware.catalog.prices.cluster_prices`.

    Raises:
        ShardwrightError: as `trials.best_of` and `simulations.simulation` do; the message names the
        cluster where there are several.
    """
    found = []
    for cluster in clusters:
        one = replace(request, cluster=cluster)
        try:
            found += [simulations.simulation(one, strategy=text) for text in strategies] or [
                best_of(one, progress=progress)
            ]
        except ShardwrightError as error:
            error.message = f"{cluster}: {error.message}" if len(clusters) > 1 else error.message
            raise
    return tuple(training(one, tokens=tokens, prices=prices or {}) for one in found)
