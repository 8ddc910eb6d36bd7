"""The certificate of a search for cost, energy or within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from shardwright.cost.network.networks_of_plan_devices import kind_problem
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.cost_bound import least_value
from shardwright.search.mixed.pipelines.pool_cost_rates import PARETO, TIME, Goal
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.build_certificate import build_certificate
from shardwright.search.mixed.plans.low_cost_plans import PlanRecord, ValuedPlan
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import pipelines_text
from shardwright.search.mixed.plans.search_grids_of_device_pool_by_node_ranges import PoolGrids
from shardwright.search.mixed.price_pipelines_and_describe_space import pipelines_space
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.stage_cost_table import why_no_pipelines
from shardwright.search.mixed_cluster_certificate import (
    FrontPoint,
    MixedPart,
    TimeInterval,
    ValuedPart,
)
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.universal_time_bound import universal_bound


def build_cost_certificate(
    goal: Goal,
    pool_grids: PoolGrids,
    pipeline_sets: Mapping[Options, PricedPipelines],
    best: ValuedPlan,
    cells: tuple[TimeInterval, ...],
    *,
    tolerance: float,
    stopped_at: int,
) -> Certificate:
    """Build the certificate of a goal search: counts of examined plans, the bounds, and the front.

    Args:
        pipeline_sets: empty where pipelines of the model are not searched.
        stopped_at: as of `Certificate`.
    """
    record = pool_grids.record
    state = record.state
    shown_s = max(
        (cell.limit_s for cell in cells if cell.empty), default=0.0 if pipeline_sets else inf
    )
    part = MixedPart(
        shapes=sum(len(pipelines.shapes) for pipelines in pipeline_sets.values()),
        alone=tuple(one.for_certificate for one in pool_grids.searched),
        closed=(),
        tests=sum(len(one.floors) for cell in cells for one in cell.shown),
        lower_bound_s=shown_s if isfinite(shown_s) else 0.0,
        tolerance=tolerance,
        pipelines=_plan_text(best, pipeline_sets),
        composed_stopped_at=state.limit.stopped_at,
        valued=_valued(goal, pool_grids, pipeline_sets, best, cells),
        why_alone=why_no_pipelines(state.problem),
    )
    return build_certificate(
        state,
        part,
        _space(goal, pool_grids, pipeline_sets),
        best_s=best.seconds,
        shown_s=min(shown_s, pool_grids.lower_bound_s),
        stopped_at=stopped_at,
    )


def _space(
    goal: Goal, pool_grids: PoolGrids, pipeline_sets: Mapping[Options, PricedPipelines]
) -> str:
    """Describe the space of a goal search in words and values."""
    problem, choices = pool_grids.record.state.problem, pool_grids.choices
    pipelines_text = pipelines_space(problem, tuple(pipeline_sets), choices)
    pipelines = f"{pipelines_text}; and " if pipeline_sets or not problem.cluster.is_uniform else ""
    ranges = ", ".join(
        device_range.text()
        for device_range in sorted(
            pool_grids.ranges,
            key=lambda device_range: (device_range.pool.group, device_range.fewest),
        )
    )
    pinned = f"; {choices.text()}" if choices.text() else ""
    budget = f"; for at most {goal.budget:g} dollars an hour" if isfinite(goal.budget) else ""
    least = goal.objective if goal.objective != PARETO else "cost by each time"
    return f"{pipelines}every grid of the standard space on {ranges}{pinned}; least {least}{budget}"


def _plan_text(point: ValuedPlan, pipeline_sets: Mapping[Options, PricedPipelines]) -> str:
    """Describe a plan in one line."""
    return (
        pipelines_text(next(iter(pipeline_sets.values())).stage_costs.table, point.mixed)
        if point.mixed is not None
        else point.grid
    )


def _valued(
    goal: Goal,
    pool_grids: PoolGrids,
    pipeline_sets: Mapping[Options, PricedPipelines],
    best: ValuedPlan,
    cells: tuple[TimeInterval, ...],
) -> ValuedPart:
    """Build the part of the certificate with the plan's value, its bound and the front."""
    record, universal_bound = pool_grids.record, universal_value_bound(pool_grids.record)

    def lower(by: float, value: float) -> float:
        """Proven lower bound on the value of plans that end by a time, at most `value`."""
        proven = (
            universal_bound
            if goal.objective == TIME
            else max(
                min(least_value(cells, limit_s=by), pool_grids.value_bound(limit_s=by)),
                universal_bound,
            )
        )
        assert proven <= value * (1 + 1e-9) or proven == inf, (
            f"{proven} {record.price_per_second.unit} are called a bound of {value}"
        )
        return min(proven, value)

    front = tuple(
        FrontPoint(
            step_time_s=point.seconds,
            value=point.value,
            lower_bound=lower(point.seconds, point.value),
            pipelines=_plan_text(point, pipeline_sets),
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


def universal_value_bound(record: PlanRecord) -> float:
    """Lower bound in dollars or joules a step on every plan: all work on the cheapest kind."""
    problem = record.state.problem
    rates: list[float] = record.price_per_second.rates.tolist()
    pools = pools_of(problem.cluster)
    return min(
        rate * universal_bound(kind_problem(problem, pool.first), 1)
        for rate, pool in zip(rates, pools, strict=True)
    )
