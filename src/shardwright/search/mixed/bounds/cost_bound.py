"""Lower bound on cost or energy, proven over intervals of step times.

A plan that takes begin_s to limit_s completes the batch by limit_s. So it takes at least the least
rate by that limit, and at least begin_s times that rate a step. From the longest time down each
interval reaches as far as this product stays above the value to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite

from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.dollars_or_joules_per_second_bound import (
    ValuesCache,
    floor_holds,
    least_floors,
    least_rate,
)
from shardwright.search.mixed.bounds.time_bound import covers_space
from shardwright.search.mixed.pipelines.pool_cost_rates import PricePerSecond
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed_cluster_certificate import Floors, TimeInterval
from shardwright.search.search_time_limit import Limit

SLIGHT = 1e-7
"""Relative rounding error of numbers in files."""

PipelineSets = Mapping[Options, PricedPipelines]


def least_rate_by(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    limit_s: float,
    values_cache: Mapping[Options, ValuesCache],
    *,
    enough: float,
) -> tuple[float, tuple[Floors, ...]]:
    """Lower bound in dollars or joules a second on plans by a limit (inf = no plan), and its proof.

    The rate is rounded up to whole nodes; inf = no plan ends by the limit.

    Args:
        enough: rate from which on no higher bound is looked for.
    """
    shown, rate = [], inf
    for options, pipelines in pipeline_sets.items():
        floors = least_floors(
            pipelines,
            price_per_second,
            limit_s,
            enough=enough,
            max_programs=pipelines.effort.cost_bound_tests,
            values_cache=values_cache[options],
        )
        shown.append(Floors(options=options, floors=floors))
        rate = min(rate, least_rate(floors))
    return round_up_to_node_rates(pipeline_sets, price_per_second, rate), tuple(shown)


def round_up_to_node_rates(
    pipeline_sets: PipelineSets, price_per_second: PricePerSecond, rate: float
) -> float:
    """Least cost rate of whole nodes that is at least `rate`, in dollars or joules a second."""
    pipelines = next(iter(pipeline_sets.values()))
    packs = [
        pool.devices // int(size)
        for pool, size in zip(
            pipelines.stage_costs.table.pools, price_per_second.sizes, strict=True
        )
    ]
    return price_per_second.round_up(rate, packs)


def interval_up_to(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    limit_s: float,
    values_cache: Mapping[Options, ValuesCache],
    *,
    budget: float,
    enough: float,
) -> TimeInterval:
    """Interval from 0 s to a limit, its least cost rate and proof; empty if above `budget`."""
    rate, shown = least_rate_by(
        pipeline_sets, price_per_second, limit_s, values_cache, enough=enough
    )
    empty = rate > budget * (1 + 1e-9)
    return TimeInterval(
        begin_s=0.0,
        limit_s=limit_s,
        rate=rate if isfinite(rate) else None,
        empty=empty or not isfinite(rate),
        shown=shown,
    )


def intervals_of_all_times(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    *,
    budget: float,
    longest_interval: TimeInterval,
    target: Callable[[float], float],
    edges: tuple[float, ...],
    effort: Effort,
    clock: Limit,
    values_cache: Mapping[Options, ValuesCache],
    say: Callable[[float], None],
) -> tuple[TimeInterval, ...]:
    """Intervals that cover all step times, the latest first, each with its least cost rate.

    Args:
        budget: largest units a second of a plan, inf = no limit.
        longest_interval: the first interval.
        target: value to prove for plans that end by a limit.
        edges: step times that no interval reaches across.
        clock: past its limit nothing more is proven.
        say: called with each limit.
    """
    high, cells = longest_interval.begin_s, [longest_interval]
    while True:
        say(high)
        if clock.passed():
            return (
                *cells,
                TimeInterval(begin_s=0.0, limit_s=high, rate=0.0, empty=False, shown=()),
            )
        wanted = target(high)
        cell = interval_up_to(
            pipeline_sets,
            price_per_second,
            high,
            values_cache,
            budget=budget,
            enough=effort.least_interval_ratio * wanted / high,
        )
        if cell.empty or cell.rate is None:
            return (*cells, cell)
        low = max(
            min(wanted / cell.rate if cell.rate else inf, high / effort.least_interval_ratio),
            high / effort.largest_interval_ratio,
        )
        low = max([low, *(edge for edge in edges if edge < high)])
        cells.append(replace(cell, begin_s=low))
        high = low


def earliest_within(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    *,
    budget: float,
    latest_limit_s: float,
    effort: Effort,
    clock: Limit,
    values_cache: Mapping[Options, ValuesCache],
) -> TimeInterval:
    """Longest interval of step times by which no plan within the budget ends."""

    def interval_by(limit_s: float) -> TimeInterval:
        """The interval of all step times up to a limit, with the floors that prove its rate."""
        return interval_up_to(
            pipeline_sets,
            price_per_second,
            limit_s,
            values_cache,
            budget=budget,
            enough=budget * (1 + 1e-6),
        )

    empty_interval = interval_by(latest_limit_s)
    if empty_interval.empty:
        return empty_interval
    low, empty_interval = (
        0.0,
        TimeInterval(begin_s=0.0, limit_s=0.0, rate=None, empty=True, shown=()),
    )
    while (
        latest_limit_s - low > effort.budget_limit_precision * latest_limit_s and not clock.passed()
    ):
        middle = (low + latest_limit_s) / 2
        cell = interval_by(middle)
        low, latest_limit_s, empty_interval = (
            (middle, latest_limit_s, cell) if cell.empty else (low, middle, empty_interval)
        )
    return empty_interval


def least_value(cells: tuple[TimeInterval, ...], *, limit_s: float = inf) -> float:
    """Lower bound in dollars or joules a step on plans faster than `limit_s`; inf = no such plan.

    Inf where the intervals prove that there is no such plan.
    """
    return min(
        (
            cell.begin_s * cell.rate
            for cell in cells
            if cell.begin_s < limit_s and not cell.empty and cell.rate is not None
        ),
        default=inf,
    )


def interval_holds(
    pipeline_sets: PipelineSets, price_per_second: PricePerSecond, cell: TimeInterval
) -> bool:
    """True where an interval's floors cover the space by its limit and prove its rate."""
    if {floors.options for floors in cell.shown} != set(pipeline_sets):
        return False
    least = inf
    for floors in cell.shown:
        pipelines = pipeline_sets[floors.options]
        least = min(least, least_rate(floors.floors))
        limits_reached = all(
            floor.limit_s >= cell.limit_s * (1 - SLIGHT) for floor in floors.floors
        )
        if not (
            limits_reached
            and covers_space(pipelines.stage_costs, [floor.frame for floor in floors.floors])
        ):
            return False
        if not all(floor_holds(pipelines, price_per_second, floor) for floor in floors.floors):
            return False
    least = round_up_to_node_rates(pipeline_sets, price_per_second, least)
    return least == inf if cell.rate is None else least >= cell.rate * (1 - SLIGHT)
