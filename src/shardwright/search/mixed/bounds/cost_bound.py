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
from shardwright.search.frames import Cell, Floors
from shardwright.search.limit import Limit
from shardwright.search.mixed.bounds.cost_rate_bound import (
    Known,
    holds_floor,
    least_floors,
    least_of,
)
from shardwright.search.mixed.bounds.time_bound import covers
from shardwright.search.mixed.pipelines.price_per_second import Tariff
from shardwright.search.mixed.pipelines.priced_pipelines import Market

FINEST, WIDEST = 1.02, 4.0
"""Times its begin that a cell's limit is at least, and at most."""
TESTS = 24
"""Linear programs of a limit at most."""
SLIGHT = 1e-7
"""Share of a number that a file rounds."""
FINE = 0.002
"""Share of a limit to which the earliest within a budget is found."""

Markets = Mapping[Options, Market]


def rate_by(
    markets: Markets,
    tariff: Tariff,
    limit_s: float,
    known: Mapping[Options, Known],
    *,
    enough: float,
) -> tuple[float, tuple[Floors, ...]]:
    """The least that any plan of several markets takes a second to end by a limit, on whole nodes,
    and what shows it; inf = none ends.
    """
    shown, rate = [], inf
    for options, market in markets.items():
        floors = least_floors(
            market, tariff, limit_s, enough=enough, most=TESTS, known=known[options]
        )
        shown.append(Floors(options=options, floors=floors))
        rate = min(rate, least_of(floors))
    return whole_rate(markets, tariff, rate), tuple(shown)


def whole_rate(markets: Markets, tariff: Tariff, rate: float) -> float:
    """The least rate of whole nodes that is no smaller."""
    market = next(iter(markets.values()))
    packs = [
        pool.devices // int(size)
        for pool, size in zip(market.ground.table.pools, tariff.sizes, strict=True)
    ]
    return tariff.whole(rate, packs)


def cell_of(
    markets: Markets,
    tariff: Tariff,
    limit_s: float,
    known: Mapping[Options, Known],
    *,
    budget: float,
    enough: float,
) -> Cell:
    """The cell of all times up to a limit."""
    rate, shown = rate_by(markets, tariff, limit_s, known, enough=enough)
    empty = rate > budget * (1 + 1e-9)
    return Cell(
        begin_s=0.0,
        limit_s=limit_s,
        rate=rate if isfinite(rate) else None,
        empty=empty or not isfinite(rate),
        shown=shown,
    )


def march(
    markets: Markets,
    tariff: Tariff,
    *,
    budget: float,
    last: Cell,
    target: Callable[[float], float],
    edges: tuple[float, ...],
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
        cell = cell_of(markets, tariff, high, known, budget=budget, enough=FINEST * wanted / high)
        if cell.empty or cell.rate is None:
            return (*cells, cell)
        low = max(min(wanted / cell.rate if cell.rate else inf, high / FINEST), high / WIDEST)
        low = max([low, *(edge for edge in edges if edge < high)])
        cells.append(replace(cell, begin_s=low))
        high = low


def earliest_within(
    markets: Markets,
    tariff: Tariff,
    *,
    budget: float,
    high: float,
    clock: Limit,
    known: Mapping[Options, Known],
) -> Cell:
    """Times by which no plan within a budget ends, as long as can be shown up to `high`."""

    def tried(limit_s: float) -> Cell:
        return cell_of(markets, tariff, limit_s, known, budget=budget, enough=budget * (1 + 1e-6))

    found = tried(high)
    if found.empty:
        return found
    low, found = 0.0, Cell(begin_s=0.0, limit_s=0.0, rate=None, empty=True, shown=())
    while high - low > FINE * high and not clock.passed():
        middle = (low + high) / 2
        cell = tried(middle)
        low, high, found = (middle, high, cell) if cell.empty else (low, middle, found)
    return found


def least_value(cells: tuple[Cell, ...], *, by: float = inf) -> float:
    """What a plan that ends by some seconds takes at least; inf where cells show that there is
    none.
    """
    return min(
        (
            cell.begin_s * cell.rate
            for cell in cells
            if cell.begin_s < by and not cell.empty and cell.rate is not None
        ),
        default=inf,
    )


def cell_holds(markets: Markets, tariff: Tariff, cell: Cell) -> bool:
    """Whether a cell's floors make up the space by its limit and show its rate."""
    if {one.options for one in cell.shown} != set(markets):
        return False
    least = inf
    for one in cell.shown:
        market = markets[one.options]
        least = min(least, least_of(one.floors))
        late = all(floor.limit_s >= cell.limit_s * (1 - SLIGHT) for floor in one.floors)
        if not (late and covers(market.ground, [floor.frame for floor in one.floors])):
            return False
        if not all(holds_floor(market, tariff, floor) for floor in one.floors):
            return False
    least = whole_rate(markets, tariff, least)
    return least == inf if cell.rate is None else least >= cell.rate * (1 - SLIGHT)
