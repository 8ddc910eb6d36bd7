"""The certificate of a search for cost, energy or within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from shardwright.cost.network.plan_groups import kind_problem
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.certificate import Certificate
from shardwright.search.frames import Cell, FrontPoint, MixedPart, ValuedPart
from shardwright.search.mixed.bounds.cost_bound import least_value
from shardwright.search.mixed.find_fastest import pipelines_space
from shardwright.search.mixed.pipelines.price_per_second import PARETO, TIME
from shardwright.search.mixed.pipelines.priced_pipelines import Market
from shardwright.search.mixed.plans.certificate import certified
from shardwright.search.mixed.plans.low_cost_plans import Book, Point
from shardwright.search.mixed.plans.pool_grids_by_nodes import OwnGrids
from shardwright.search.mixed.plans.write_plan import pipelines_text
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.stage_tables import why_alone
from shardwright.search.universal import universal_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked: an objective of `request.OBJECTIVES`, and dollars an hour that plans may rent
    for (inf = any).
    """

    objective: str = TIME
    budget: float = inf


def valued_certificate(
    goal: Goal,
    own: OwnGrids,
    markets: Mapping[Options, Market],
    best: Point,
    cells: tuple[Cell, ...],
    *,
    tolerance: float,
    stopped_at: int,
) -> Certificate:
    """All plans that were looked at, the bounds of time and of what is asked, and the front.

    Args:
        markets: none where pipelines of the model are not searched.
        stopped_at: as of `Certificate`.
    """
    book = own.book
    standing = book.standing
    shown_s = max((cell.limit_s for cell in cells if cell.empty), default=0.0 if markets else inf)
    part = MixedPart(
        shapes=sum(len(market.shapes) for market in markets.values()),
        alone=tuple(one.told for one in own.searched),
        closed=(),
        tests=sum(len(one.floors) for cell in cells for one in cell.shown),
        lower_bound_s=shown_s if isfinite(shown_s) else 0.0,
        tolerance=tolerance,
        pipelines=_words(best, markets),
        composed_stopped_at=standing.limit.stopped_at,
        valued=_valued(goal, own, markets, best, cells),
        why_alone=why_alone(standing.problem),
    )
    return certified(
        standing,
        part,
        _space(goal, own, markets),
        best_s=best.seconds,
        shown_s=min(shown_s, own.lower_bound_s),
        stopped_at=stopped_at,
    )


def _space(goal: Goal, own: OwnGrids, markets: Mapping[Options, Market]) -> str:
    """The space in words and values."""
    problem, choices = own.book.standing.problem, own.choices
    said = pipelines_space(problem, tuple(markets), choices)
    pipelines = f"{said}; and " if markets or not problem.cluster.is_uniform else ""
    ranges = ", ".join(
        one.text() for one in sorted(own.ranges, key=lambda one: (one.pool.group, one.fewest))
    )
    pinned = f"; {choices.text()}" if choices.text() else ""
    budget = f"; for at most {goal.budget:g} dollars an hour" if isfinite(goal.budget) else ""
    least = goal.objective if goal.objective != PARETO else "cost by each time"
    return f"{pipelines}every grid of the standard space on {ranges}{pinned}; least {least}{budget}"


def _words(point: Point, markets: Mapping[Options, Market]) -> str:
    """A plan in a line."""
    return (
        pipelines_text(next(iter(markets.values())).ground.table, point.mixed)
        if point.mixed is not None
        else point.grid
    )


def _valued(
    goal: Goal,
    own: OwnGrids,
    markets: Mapping[Options, Market],
    best: Point,
    cells: tuple[Cell, ...],
) -> ValuedPart:
    book, whatever = own.book, least_of_any(own.book)

    def lower(by: float, value: float) -> float:
        shown = (
            whatever
            if goal.objective == TIME
            else max(min(least_value(cells, by=by), own.bound(by=by)), whatever)
        )
        assert shown <= value * (1 + 1e-9) or shown == inf, (
            f"{shown} {book.tariff.unit} are called a bound of {value}"
        )
        return min(shown, value)

    front = tuple(
        FrontPoint(
            step_time_s=point.seconds,
            value=point.value,
            lower_bound=lower(point.seconds, point.value),
            pipelines=_words(point, markets),
            plan=point.plan,
        )
        for point in book.front()
    )
    return ValuedPart(
        objective=goal.objective,
        unit=book.tariff.unit,
        budget=goal.budget if isfinite(goal.budget) else 0.0,
        value=best.value,
        lower_bound=lower(inf, best.value),
        cells=cells,
        front=front if goal.objective == PARETO else (),
    )


def least_of_any(book: Book) -> float:
    """Units that no plan whatever can do a step for: all its work at the best rate of the kind that
    takes least for it.
    """
    problem = book.standing.problem
    rates: list[float] = book.tariff.rates.tolist()
    pools = pools_of(problem.cluster)
    return min(
        rate * universal_bound(kind_problem(problem, pool.first), 1)
        for rate, pool in zip(rates, pools, strict=True)
    )
