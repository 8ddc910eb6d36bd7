"""Next best plans of a mixed search: the fastest simulated plan of each composition."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedPlan,
    general_plan,
    pipelines_text,
)
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed_cluster_certificate import RunnerUp


def runners_up(
    state: SearchState, stage_costs_of: Mapping[Options, MixedStageCosts], *, top: int
) -> tuple[RunnerUp, ...]:
    """Up to `top` simulated plans of other compositions than the best and each other, by seconds.

    A composition is a plan's pipelines and replica counts, without layer cuts and microbatches.
    """
    seen = {composition(state.mixed)} if state.mixed is not None else set()
    plans: list[RunnerUp] = []
    for seconds, _, plan, options in sorted(state.ranked, key=lambda ranked: ranked[:2]):
        if len(plans) == top:
            break
        if composition(plan) in seen or options not in stage_costs_of:
            continue
        seen.add(composition(plan))
        stage_costs = stage_costs_of[options]
        text = pipelines_text(stage_costs.table, plan)
        plans.append(
            RunnerUp(
                pipelines=text,
                step_time_s=seconds,
                plan=general_plan(stage_costs, plan, options=options),
            )
        )
    return tuple(plans)


def simulate_slower_candidates(
    state: SearchState, pipeline_sets: Mapping[Options, PricedPipelines], *, top: int
) -> None:
    """Simulate candidates that cannot be best, 2 x `top` at most, for `top` further compositions.

    The candidates with the smallest lower bound come first.
    """
    seen = {composition(plan) for _, _, plan, _ in state.ranked}
    tries = 2 * top
    for candidate in sorted(state.behind, key=lambda candidate: candidate.seconds):
        if len(seen) > top or not tries or state.ends():
            return
        if composition(candidate.plan) not in seen:
            seen.add(composition(candidate.plan))
            state.bounded -= 1
            state.looked_at -= 1
            tries -= 1
            state.simulate_candidate(pipeline_sets, candidate)


def composition(plan: MixedPlan) -> frozenset[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Set of (table row of each run, stages of each run, replicas) of the plan's lanes."""
    return frozenset((lane.rows, lane.stages, lane.replicas) for lane in plan.lanes)
