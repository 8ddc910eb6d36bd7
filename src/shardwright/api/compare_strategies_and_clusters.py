"""Compare strategies and clusters side by side, with the cost of training on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.api.searches.device_and_batch_sweeps import simulate_best_plan
from shardwright.api.training_run_days_and_dollars import with_training_cost
from shardwright.errors import ShardwrightError
from shardwright.progress_callback import Progress, beside
from shardwright.search.comparison_row import Compared
from shardwright.search.search_request import Request


def compare(
    request: Request,
    *,
    clusters: Sequence[str],
    strategies: Sequence[str] = (),
    tokens: float = 0.0,
    prices: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> tuple[Compared, ...]:
    """Simulate each strategy on each cluster, with training costs; no strategies = the best plans.

    Args:
        request: values that all strategies and clusters share; its cluster is ignored.
        tokens: tokens of the training run; 0 = not known.
        prices: dollars a device-hour, see `hardware.catalog.list_prices.cluster_prices`.

    Raises:
        ShardwrightError: as `simulate_best_plan` and `simulation`; the message names
            the cluster where there are several.
    """
    simulated = []
    for cluster in clusters:
        cluster_request = replace(request, cluster=cluster)
        try:
            simulated += [
                simulate_strategy.simulation(cluster_request, strategy=text) for text in strategies
            ] or [
                simulate_best_plan(
                    cluster_request,
                    progress=beside(progress, cluster) if len(clusters) > 1 else progress,
                )
            ]
        except ShardwrightError as error:
            error.message = f"{cluster}: {error.message}" if len(clusters) > 1 else error.message
            raise
    return tuple(
        with_training_cost(simulation, tokens=tokens, prices=prices or {})
        for simulation in simulated
    )
