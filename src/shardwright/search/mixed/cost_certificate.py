"""The certificate of a search for cost, energy or within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from shardwright.cost.network.plan_groups import kind_problem
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.certificate import Certificate
from shardwright.search.mixed.bounds.cost_bound import least_value
from shardwright.search.mixed.find_fastest import pipelines_space
from shardwright.search.mixed.pipelines.price_per_second import PARETO, TIME
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.plans.certificate import certified
from shardwright.search.mixed.plans.low_cost_plans import PlanRecord, Point
from shardwright.search.mixed.plans.pool_grids_by_nodes import OwnGrids
from shardwright.search.mixed.plans.write_plan import pipelines_text
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.stage_tables import why_alone
from shardwright.search.mixed_certificate import Cell, FrontPoint, MixedPart, ValuedPart
from shardwright.search.universal_bound import universal_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a search: an objective of `request.OBJECTIVES`, and dollars an hour that plans
    may rent for (inf = any).
    """

    objective: str = TIME
    budget: float = inf


def valued_certificate(
    goal: Goal,
    own: OwnGrids,
    pipeline_sets: Mapping[Options, PricedPipelines],
    best: Point,
    cells: tuple[Cell, ...],
    *,
    tolerance: float,
    stopped_at: int,
) -> Certificate:
    """The certificate: all plans that were examined, the bounds of time and of the objective, and
    the front.

    Args:
        pipeline_sets: none where pipelines of the model are not searched.
        stopped_at: as of `Certificate`.
    """
    record = own.record
    standing = record.standing
    shown_s = max(
        (cell.limit_s for cell in cells if cell.empty), default=0.0 if pipeline_sets else inf
    )
    part = MixedPart(
        shapes=sum(len(pipelines.shapes) for pipelines in pipeline_sets.values()),
        alone=tuple(one.for_certificate for one in own.searched),
        closed=(),
        tests=sum(len(one.floors) for cell in cells for one in cell.shown),
        lower_bound_s=shown_s if isfinite(shown_s) else 0.0,
        tolerance=tolerance,
        pipelines=_words(best, pipeline_sets),
        composed_stopped_at=standing.limit.stopped_at,
        valued=_valued(goal, own, pipeline_sets, best, cells),
        why_alone=why_alone(standing.problem),
    )
    return certified(
        standing,
        part,
        _space(goal, own, pipeline_sets),
        best_s=best.seconds,
        shown_s=min(shown_s, own.lower_bound_s),
        stopped_at=stopped_at,
    )


def _space(goal: Goal, own: OwnGrids, pipeline_sets: Mapping[Options, PricedPipelines]) -> str:
    """The space in words and values."""
    problem, choices = own.record.standing.problem, own.choices
    said = pipelines_space(problem, tuple(pipeline_sets), choices)
    pipelines = f"{said}; and " if pipeline_sets or not problem.cluster.is_uniform else ""
    ranges = ", ".join(
        one.text() for one in sorted(own.ranges, key=lambda one: (one.pool.group, one.fewest))
    )
    pinned = f"; {choices.text()}" if choices.text() else ""
    budget = f"; for at most {goal.budget:g} dollars an hour" if isfinite(goal.budget) else ""
    least = goal.objective if goal.objective != PARETO else "cost by each time"
    return f"{pipelines}every grid of the standard space on {ranges}{pinned}; least {least}{budget}"


def _words(point: Point, pipeline_sets: Mapping[Options, PricedPipelines]) -> str:
    """A plan in a line."""
    return (
        pipelines_text(next(iter(pipeline_sets.values())).stage_costs.table, point.mixed)
        if point.mixed is not None
        else point.grid
    )


def _valued(
    goal: Goal,
    own: OwnGrids,
    pipeline_sets: Mapping[Options, PricedPipelines],
    best: Point,
    cells: tuple[Cell, ...],
) -> ValuedPart:
    record, whatever = own.record, least_of_any(own.record)

    def lower(by: float, value: float) -> float:
        shown = (
            whatever
            if goal.objective == TIME
            else max(min(least_value(cells, by=by), own.bound(by=by)), whatever)
        )
        assert shown <= value * (1 + 1e-9) or shown == inf, (
            f"{shown} {record.price_per_second.unit} are called a bound of {value}"
        )
        return min(shown, value)

    front = tuple(
        FrontPoint(
            step_time_s=point.seconds,
            value=point.value,
            lower_bound=lower(point.seconds, point.value),
            pipelines=_words(point, pipeline_sets),
            plan=point.plan,
        )
        for point in record.front()
    )
    return ValuedPart(
        objective=goal.objective,
        unit=record.price_per_second.unit,
        budget=goal.budget if isfinite(goal.budget) else 0.0,
        value=best.value,
        lower_bound=lower(inf, best.value),
        cells=cells,
        front=front if goal.objective == PARETO else (),
    )


def least_of_any(record: PlanRecord) -> float:
    """Units that no plan whatever can do a step for: all its work at the best rate of the kind that
    takes least for it.
    """
    problem = record.standing.problem
    rates: list[float] = record.price_per_second.rates.tolist()
    pools = pools_of(problem.cluster)
    return min(
        rate * universal_bound(kind_problem(problem, pool.first), 1)
        for rate, pool in zip(rates, pools, strict=True)
    )
