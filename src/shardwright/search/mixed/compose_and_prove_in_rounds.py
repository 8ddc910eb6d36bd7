"""Rounds of the search for the fastest plan: compose plans, simulate them, prove a bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from shardwright.progress_callback import Progress
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.time_bound import BranchAndBound, limit_for_gap, lower_bound
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks
from shardwright.search.mixed.pipelines.subsets_by_pool_speed_and_zone import pool_subsets
from shardwright.search.mixed.plans.compose_at_time_limits import (
    CompositionQueue,
    compose_by_limits,
    compose_undivided,
    in_task_order,
    queues_by_sharding,
)
from shardwright.search.mixed.plans.local_search_of_plans import improve_best_plans
from shardwright.search.mixed.plans.plan_search_state import SearchState, simulate_best
from shardwright.search.mixed.plans.plans_of_equal_replicas import compose_one_shape
from shardwright.search.mixed.price_pipelines_and_describe_space import (
    no_plan_fits,
    stage_costs_by_options,
)
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_time_limit import Limit, out_of_time, progress_text


def search_in_rounds(
    state: SearchState,
    pipeline_sets: dict[Options, PricedPipelines],
    proof: Limit,
    engine: Engine,
    *,
    effort: Effort,
    tolerance: float,
    progress: Progress | None,
) -> tuple[float, tuple[BranchAndBound, ...]]:
    """Compose and prove until within `tolerance`; return the bound in seconds and its proofs.

    Returns the lower bound in seconds on every pipeline plan, and its proof for each set of
    options.

    Raises:
        InfeasibleError: no plan fits. OutOfTimeError: there is no plan long after the time limit.
    """

    def say(what: str, number: int) -> None:
        """Report progress, with the best plan so far and its bound."""
        report_progress(
            progress,
            progress_text(
                what, best_s=state.best_s, lower_s=bound_and_proofs[0], limit=state.limit
            ),
            number,
            len(tasks.effort.rounds),
        )

    parts = [
        (options, part)
        for options, pipelines in pipeline_sets.items()
        for part in pool_subsets(pipelines)
    ]
    tasks = SearchTasks.of(engine, state.problem, [part for _, part in parts], effort=effort)
    stage_costs_of = stage_costs_by_options(pipeline_sets)
    all_pipelines = tuple(pipeline_sets.values())
    bound_and_proofs: tuple[float, tuple[BranchAndBound, ...]] = (
        0.0,
        tuple(BranchAndBound(pipelines=one, tasks=tasks) for one in all_pipelines),
    )
    proved_s = inf

    def within_tolerance() -> bool:
        """True if the bound is within `tolerance` of the best plan."""
        return state.best is not None and bound_and_proofs[0] >= limit_for_gap(
            state.best_s, tolerance
        )

    def prove(number: int) -> None:
        """Improve the best plans, and prove a lower bound if the best plan has changed."""
        nonlocal bound_and_proofs, proved_s
        say("polish the best", number)
        improve_best_plans(state, tasks, stage_costs_of)
        if state.best_s < proved_s:
            say("prove that nothing is faster", number)
            bound_and_proofs = lower_bound(
                tasks, all_pipelines, state.best_s, tolerance=tolerance, clock=proof
            )
            proved_s = state.best_s

    composing = _early_plans(state, tasks, stage_costs_of, parts, proof, lambda what: say(what, 0))
    all_sharded = all(one.share == 1 and one.pipelines.shapes.sharded.all() for one in composing)
    if state.best is not None:
        prove(0)
    if within_tolerance():
        return bound_and_proofs
    for options, pipelines in pipeline_sets.items():
        compose_one_shape(state, tasks, pipelines, options)
    for number, (limits, most) in enumerate(tasks.effort.rounds):
        say("compose and simulate", number)
        compose_by_limits(state, tasks, composing, max_limits=limits)
        simulate_best(
            state,
            tasks,
            stage_costs_of,
            max_simulations=most * sum(one.share == 1 for one in composing),
            sharded=all_sharded,
        )
        if not all_sharded:
            simulate_best(
                state,
                tasks,
                stage_costs_of,
                max_simulations=max(most // tasks.effort.sharding_share, 1)
                * sum(one.share > 1 for one in composing),
                sharded=True,
            )
        if within_tolerance():
            break
        if number in tasks.effort.proof_rounds:
            prove(number)
            if within_tolerance():
                break
    if state.best is None and state.limit.stopped_at:
        raise out_of_time()
    if state.best is None:
        raise no_plan_fits()
    return bound_and_proofs


def _early_plans(
    state: SearchState,
    tasks: SearchTasks,
    stage_costs_of: Mapping[Options, MixedStageCosts],
    parts: Sequence[tuple[Options, PricedPipelines]],
    search_limit: Limit,
    say: Callable[[str], None],
) -> list[CompositionQueue]:
    """Compose and simulate the first plans; return the queues of subspaces for the later rounds.

    Plans in which no lane shards are simulated before the others are composed, so that a first plan
    comes early. Until there is a plan, the time limit is that of the whole search.

    Args:
        search_limit: limit of the whole search; `state.limit` is the part of it for compositions.
    """
    composition_limit, state.limit = state.limit, search_limit
    queues: list[CompositionQueue] = []

    def simulate(
        chosen_queues: Sequence[CompositionQueue],
        sharded_values: tuple[bool, ...],
        *,
        rise: float,
        latest_s: float,
    ) -> None:
        """Compose plans of undivided subspaces, and simulate the most promising ones."""
        say("find a first plan")
        compose_undivided(state, tasks, chosen_queues, rise=rise, latest_s=latest_s)
        for sharded in sharded_values:
            simulate_best(
                state,
                tasks,
                stage_costs_of,
                max_simulations=tasks.effort.early_simulations,
                sharded=sharded,
            )
            if state.ranked:
                state.limit = composition_limit

    latest_s = state.best_s * tasks.effort.latest_limit_ratio
    say("find when compositions can end")
    first, *others = tasks.effort.early_limit_rises
    for sharded, group in queues_by_sharding(state, tasks, parts):
        queues += group
        simulate(group, (sharded,), rise=first, latest_s=latest_s)
        if state.ends():
            break
    queues = in_task_order(tasks, queues)
    for rise in others:
        latest_s = state.best_s * tasks.effort.latest_limit_ratio
        simulate(queues, (False, True), rise=rise, latest_s=latest_s)
    state.limit = composition_limit
    return queues


def report_progress(progress: Progress | None, text: str, done: int, total: int) -> None:
    """Report progress, if a progress function is given."""
    if progress is not None:
        progress(text, done, total)
