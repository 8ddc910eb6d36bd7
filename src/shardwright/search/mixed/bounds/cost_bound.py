"""The bound of a search for cost or energy: times are cut into cells, and each shows the least that
plans that end in it take.

A plan that takes begin_s to limit_s does the batch by limit_s, so it takes no less a second than
the least rate by then, and no less a step than begin_s times that. From the longest time down each
cell reaches as far as that stays above what is to be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite

from shardwright.runtime.runtime import Options
from shardwright.search.mixed.bounds.cost_rate_bound import (
    Known,
    holds_floor,
    least_floors,
    least_of,
)
from shardwright.search.mixed.bounds.time_bound import covers
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.pipelines.price_per_second import PricePerSecond
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed_certificate import Cell, Floors
from shardwright.search.search_limit import Limit

SLIGHT = 1e-7
"""Share of a number that a file rounds."""

PipelineSets = Mapping[Options, PricedPipelines]


def rate_by(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    limit_s: float,
    known: Mapping[Options, Known],
    *,
    enough: float,
) -> tuple[float, tuple[Floors, ...]]:
    """Least dollars or joules a second of a plan that ends by a limit, on whole nodes, and the
    floors that prove it; inf = no plan ends by then.
    """
    shown, rate = [], inf
    for options, pipelines in pipeline_sets.items():
        floors = least_floors(
            pipelines,
            price_per_second,
            limit_s,
            enough=enough,
            most=pipelines.effort.cost_bound_tests,
            known=known[options],
        )
        shown.append(Floors(options=options, floors=floors))
        rate = min(rate, least_of(floors))
    return whole_rate(pipeline_sets, price_per_second, rate), tuple(shown)


def whole_rate(pipeline_sets: PipelineSets, price_per_second: PricePerSecond, rate: float) -> float:
    """The least rate of whole nodes that is no smaller."""
    pipelines = next(iter(pipeline_sets.values()))
    packs = [
        pool.devices // int(size)
        for pool, size in zip(
            pipelines.stage_costs.table.pools, price_per_second.sizes, strict=True
        )
    ]
    return price_per_second.whole(rate, packs)


def cell_of(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    limit_s: float,
    known: Mapping[Options, Known],
    *,
    budget: float,
    enough: float,
) -> Cell:
    """The cell of all times up to a limit."""
    rate, shown = rate_by(pipeline_sets, price_per_second, limit_s, known, enough=enough)
    empty = rate > budget * (1 + 1e-9)
    return Cell(
        begin_s=0.0,
        limit_s=limit_s,
        rate=rate if isfinite(rate) else None,
        empty=empty or not isfinite(rate),
        shown=shown,
    )


def cells_of_all_times(
    pipeline_sets: PipelineSets,
    price_per_second: PricePerSecond,
    *,
    budget: float,
    last: Cell,
    target: Callable[[float], float],
    edges: tuple[float, ...],
    effort: Effort,
    clock: Limit,
    known: Mapping[Options, Known],
    say: Callable[[float], None],
) -> tuple[Cell, ...]:
    """Cells of all times, the longest first.

    Args:
        budget: units a second that plans may take, inf = any.
        last: the first cell.
        target: value that is to be shown of plans that end by a limit.
        edges: times that no cell reaches over.
        clock: past it nothing more is shown.
        say: called with each limit.
    """
    high, cells = last.begin_s, [last]
    while True:
        say(high)
        if clock.passed():
            return (*cells, Cell(begin_s=0.0, limit_s=high, rate=0.0, empty=False, shown=()))
        wanted = target(high)
        cell = cell_of(
            pipeline_sets,
            price_per_second,
            high,
            known,
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
    high: float,
    effort: Effort,
    clock: Limit,
    known: Mapping[Options, Known],
) -> Cell:
    """Times by which no plan within a budget ends, as long as can be shown up to `high`."""

    def tried(limit_s: float) -> Cell:
        return cell_of(
            pipeline_sets,
            price_per_second,
            limit_s,
            known,
            budget=budget,
            enough=budget * (1 + 1e-6),
        )

    found = tried(high)
    if found.empty:
        return found
    low, found = 0.0, Cell(begin_s=0.0, limit_s=0.0, rate=None, empty=True, shown=())
    while high - low > effort.budget_limit_precision * high and not clock.passed():
        middle = (low + high) / 2
        cell = tried(middle)
        low, high, found = (middle, high, cell) if cell.empty else (low, middle, found)
    return found


def least_value(cells: tuple[Cell, ...], *, by: float = inf) -> float:
    """Lower bound on dollars or joules of a plan that ends by some seconds; inf where cells show
    that there is none.
    """
    return min(
        (
            cell.begin_s * cell.rate
            for cell in cells
            if cell.begin_s < by and not cell.empty and cell.rate is not None
        ),
        default=inf,
    )


def cell_holds(pipeline_sets: PipelineSets, price_per_second: PricePerSecond, cell: Cell) -> bool:
    """True where a cell's floors make up the space by its limit and prove its rate."""
    if {one.options for one in cell.shown} != set(pipeline_sets):
        return False
    least = inf
    for one in cell.shown:
        pipelines = pipeline_sets[one.options]
        least = min(least, least_of(one.floors))
        late = all(floor.limit_s >= cell.limit_s * (1 - SLIGHT) for floor in one.floors)
        if not (late and covers(pipelines.stage_costs, [floor.frame for floor in one.floors])):
            return False
        if not all(holds_floor(pipelines, price_per_second, floor) for floor in one.floors):
            return False
    least = whole_rate(pipeline_sets, price_per_second, least)
    return least == inf if cell.rate is None else least >= cell.rate * (1 - SLIGHT)
