"""Contents of the report's view of a comparison."""

from __future__ import annotations

from typing import Final

from shardwright.api.report.ratio_or_zero import ratio
from shardwright.api.request_to_command import command_text
from shardwright.api.searches.device_and_batch_sweeps import simulate_best_plan
from shardwright.errors import InfeasibleError
from shardwright.files.comparison_advice_serving_document_classes import (
    StoredComparison,
    StoredCost,
)
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.report.page.view_data_types.compared_strategies import (
    ComparedStrategies,
    ComparedStrategy,
    PriceRow,
    SearchedPlan,
)
from shardwright.report.screens.step_time_table import part_name
from shardwright.search.simulated_strategy import strategy_text
from shardwright.units import MEGA

_SECONDS_PER_DAY: Final = 86400.0


def compared_strategies(saved: StoredComparison) -> ComparedStrategies:
    """The strategies of a comparison with their costs, and the best plan for the fastest one."""
    ordered = sorted(
        zip(saved.strategies, saved.costs, strict=True),
        key=lambda row: (not row[0].prediction.fits, row[0].prediction.step_time_s),
    )
    longest = max(strategy.prediction.step_time_s for strategy, _ in ordered)
    seconds: dict[str, float] = {}
    for strategy, _ in ordered:
        for name, part in strategy.prediction.breakdown_s:
            seconds[name] = seconds.get(name, 0.0) + part
    parts = [name for name in sorted(seconds, key=lambda name: -seconds[name]) if seconds[name]]
    fastest = ordered[0][0]
    rows = tuple(
        _row(strategy, cost, parts, fastest.prediction.step_time_s, longest)
        for strategy, cost in ordered
    )
    prices = {price.of: price for cost in saved.costs for price in cost.prices}
    priced = [
        place
        for place, row in enumerate(rows)
        if row.usd_per_million_tokens is not None and row.fits
    ]
    return ComparedStrategies(
        model=fastest.prediction.model.name,
        rows=rows,
        part_names=tuple(map(part_name, parts)),
        part_heading="part of the step",
        cheapest=min(priced, key=lambda place: rows[place].usd_per_million_tokens or 0.0)
        if priced
        else None,
        searched=_searched(fastest),
        prices=tuple(
            PriceRow(
                of=price.of, usd_per_device_hour=price.usd_per_device_hour, source=price.source
            )
            for price in prices.values()
        ),
    )


def _row(
    strategy: StoredSimulation,
    cost: StoredCost,
    parts: list[str],
    fastest_s: float,
    longest_s: float,
) -> ComparedStrategy:
    """One strategy with its cost and the seconds of its parts."""
    prediction = strategy.prediction
    seconds = [dict(prediction.breakdown_s).get(name, 0.0) for name in parts]
    per_token, hourly, days = cost.usd_per_token, cost.usd_per_hour, cost.training_s
    return ComparedStrategy(
        cluster=strategy.request.cluster,
        strategy=strategy_text(strategy.simulation),
        step_s=prediction.step_time_s,
        slower=ratio(prediction.step_time_s - fastest_s, fastest_s),
        length=ratio(prediction.step_time_s, longest_s),
        tokens_per_s_per_device=prediction.tokens_per_s_per_device,
        mfu=prediction.mfu_causal,
        reserved_bytes=prediction.reserved_bytes,
        fits=prediction.fits,
        usd_per_device_hour=None if hourly is None else hourly / max(_paid(strategy, cost), 1),
        usd_per_million_tokens=None if per_token is None else per_token * MEGA,
        days=None if days is None else days / _SECONDS_PER_DAY,
        usd=cost.training_usd,
        part_seconds=tuple(seconds),
        part_lengths=tuple(ratio(part, longest_s) for part in seconds),
    )


def _paid(strategy: StoredSimulation, cost: StoredCost) -> int:
    """Number of devices on paid nodes; all of the cluster if the spending is unknown."""
    spending = strategy.prediction.spending
    return sum(spending.paid_devices) if spending else cost.devices


def _searched(fastest: StoredSimulation) -> SearchedPlan | None:
    """The best plan of the fastest strategy's request; None if nothing fits."""
    try:
        best = simulate_best_plan(fastest.request)
    except InfeasibleError:
        return None
    step_s = best.prediction.step_time_s
    return SearchedPlan(
        cluster=fastest.request.cluster,
        strategy=strategy_text(best),
        step_s=step_s,
        gain=ratio(fastest.prediction.step_time_s - step_s, fastest.prediction.step_time_s),
        command=command_text(fastest.request),
    )
