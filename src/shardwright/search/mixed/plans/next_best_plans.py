"""The next best plans of a mixed search: of each composition the fastest that was simulated."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.plans.simulated_plans import Standing
from shardwright.search.mixed.plans.write_plan import MixedPlan, general_plan, pipelines_text
from shardwright.search.mixed.stages.frame_terms import StageCosts
from shardwright.search.mixed_certificate import Runner


def runners_of(
    standing: Standing, stage_costs_of: Mapping[Options, StageCosts], *, top: int
) -> tuple[Runner, ...]:
    """Up to `top` next best plans, the fastest first; those that differ from a faster one by their
    cut or shares alone are left out.
    """
    seen = {composition(standing.mixed)} if standing.mixed is not None else set()
    found: list[Runner] = []
    for seconds, _, plan, options in sorted(standing.ranked, key=lambda one: one[:2]):
        if len(found) == top:
            break
        if composition(plan) in seen or options not in stage_costs_of:
            continue
        seen.add(composition(plan))
        stage_costs = stage_costs_of[options]
        words = pipelines_text(stage_costs.table, plan)
        found.append(
            Runner(
                pipelines=words,
                step_time_s=seconds,
                plan=general_plan(stage_costs, plan, options=options),
            )
        )
    return tuple(found)


def simulate_behind(
    standing: Standing, pipeline_sets: Mapping[Options, PricedPipelines], *, top: int
) -> None:
    """Simulate plans that cannot be the best, those that leave the least first, where fewer than
    `top` compositions are known.
    """
    seen = {composition(plan) for _, _, plan, _ in standing.ranked}
    tries = 2 * top
    for one in sorted(standing.behind, key=lambda one: one.seconds):
        if len(seen) > top or not tries or standing.ends():
            return
        if composition(one.plan) not in seen:
            seen.add(composition(one.plan))
            standing.bounded -= 1
            standing.looked_at -= 1
            tries -= 1
            standing.attempt(
                general_plan(pipeline_sets[one.options].stage_costs, one.plan, options=one.options),
                one.plan,
            )


def composition(plan: MixedPlan) -> frozenset[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """The pipelines of a plan and their numbers, without their cuts and microbatches."""
    return frozenset((lane.rows, lane.stages, lane.replicas) for lane in plan.lanes)
