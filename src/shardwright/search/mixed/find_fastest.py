"""Search a mixed cluster for the fastest training plan, with a lower bound on the step time.

Every device pool is first planned alone; then pipelines over several pools are composed and
simulated.
"""

from __future__ import annotations

import time
from math import inf

from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.time_bound import BranchAndBound, limit_for_gap
from shardwright.search.mixed.compose_and_prove_in_rounds import report_progress, search_in_rounds
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    GridAnswerCache,
    PoolResult,
    option_rows,
    search_each_pool,
)
from shardwright.search.mixed.plans.build_certificate import build_certificate
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, pipelines_text
from shardwright.search.mixed.plans.next_best_plans import runners_up, simulate_slower_candidates
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.plans.search_fewer_nodes_for_faster_plans import search_fewer_nodes
from shardwright.search.mixed.price_pipelines_and_describe_space import (
    TOLERANCE,
    price_pipelines,
    space_text,
    stage_costs_by_options,
)
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.stage_cost_table import why_no_pipelines
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed_cluster_certificate import (
    GIVEN_UP,
    ClosedSubspaces,
    MixedPart,
    device_worth_seconds,
)
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, Stops, limit_of, out_of_time


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchResult:
    """Result of one search: the best plan, each pool's own grids, and the proof of the bound."""

    state: SearchState
    singles: list[PoolResult]
    pipeline_sets: dict[Options, PricedPipelines]
    closings: tuple[BranchAndBound, ...]
    lower_s: float


def find_mixed(
    problem: Problem,
    *,
    choices: PinnedValues | None = None,
    top: int = 0,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    effort: Effort = USUAL,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """Find the fastest plan of a mixed cluster, and a lower bound in seconds on every plan.

    The space: pipelines over all pools, and the parallelism grids of each pool alone. Where
    pipelines of the model are not searched (`stage_cost_table.why_no_pipelines`), only the grids.

    Args:
        problem: its devices have the memory that plans may fill.
        choices: pinned values; None = nothing is pinned.
        top: number of next best compositions in the answer.
        tolerance: relative gap to the bound at which the search stops.
        time_limit_s: seconds after which the best plan so far and its proven bound are returned.
        stops: checks of the clock at which an earlier search stopped, to repeat that search (see
            `search.search_time_limit.limit_of`).
        memory: bytes for the members of all pools' grids.
        effort: limits on the work of the search.
        engine: runs the tasks; None = one task after another. The answer is the same.

    Raises:
        UsageError: no plan has the pinned values.
        InfeasibleError: no plan fits. OutOfTimeError: there is no plan long after the time limit.
    """
    begun = time.monotonic()

    def left_s() -> float:
        """Seconds left until the time limit."""
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    choices, answer_cache = choices or PinnedValues(), GridAnswerCache()
    clocks: list[Limit] = []

    def search_cluster(problem_on_nodes: Problem) -> _SearchResult:
        """Search one cluster, with all or fewer nodes: each pool alone, then pipelines."""
        singles = search_each_pool(
            state := SearchState(problem=problem_on_nodes),
            pools_of(problem_on_nodes.cluster),
            engine or Serial(),
            choices=choices,
            seconds=effort.pool_grid_time_share * time_limit_s,
            stops=stops if problem_on_nodes is problem else None,
            memory=memory,
            answer_cache=answer_cache,
            effort=effort,
            done=lambda count: report_progress(
                progress,
                "plan each kind of device alone",
                count,
                len(problem_on_nodes.cluster.groups),
            ),
        )
        rows = () if why_no_pipelines(problem_on_nodes) else option_rows(singles, choices)
        pipeline_sets = price_pipelines(problem_on_nodes, rows, choices, effort=effort)
        if not clocks:
            clocks.append(
                limit_of(
                    effort.composition_time_share * left_s(),
                    stop_at=stops.composed if stops else None,
                )
            )
            clocks.append(limit_of(left_s(), stop_at=stops.search if stops else None))
        state.limit = clocks[0]
        if pipeline_sets:
            lower_s, closings = search_in_rounds(
                state,
                pipeline_sets,
                clocks[1],
                engine or Serial(),
                effort=effort,
                tolerance=tolerance,
                progress=progress,
            )
        else:
            _require_grid(singles)
            lower_s, closings = inf, ()
        return _SearchResult(
            state=state,
            singles=singles,
            pipeline_sets=pipeline_sets,
            closings=closings,
            lower_s=lower_s,
        )

    def on_fewer(smaller_problem: Problem) -> tuple[SearchState, dict[Options, MixedStageCosts]]:
        """Search a cluster with fewer nodes; return its state and stage costs."""
        found = search_cluster(smaller_problem)
        return found.state, stage_costs_by_options(found.pipeline_sets)

    found = search_cluster(problem)
    state, pipeline_sets, proof = found.state, found.pipeline_sets, clocks[1]
    search_fewer_nodes(state, pipeline_sets, on_fewer, effort)
    simulate_slower_candidates(state, pipeline_sets, top=top)
    part = _part(found, top=top, tolerance=tolerance)
    assert state.best is not None
    return GeneralAnswer(
        strategy=state.best,
        detail=state.mixed,
        certificate=build_certificate(
            state,
            part,
            space_text(problem, tuple(pipeline_sets), choices),
            best_s=state.best_s,
            shown_s=min(
                [
                    part.lower_bound_s if pipeline_sets else inf,
                    *(pool_result.lower_bound_s for pool_result in found.singles),
                ]
            ),
            stopped_at=proof.stopped_at,
        ),
        waited=state.limit.waited or proof.waited,
        search_time_s=time.monotonic() - begun,
    )


def _require_grid(singles: list[PoolResult]) -> None:
    """Raise an error if no pool has a grid: InfeasibleError, or OutOfTimeError if time ended.

    Raises:
        InfeasibleError: no grid fits on any pool.
        OutOfTimeError: the time ended before a grid was found on some pool.
    """
    if any(pool_result.answer is not None for pool_result in singles):
        return
    if any(pool_result.stopped_at == GIVEN_UP for pool_result in singles):
        raise out_of_time()
    raise InfeasibleError(
        "no grid fits in memory on any pool alone",
        hint="more or larger devices, or a smaller model",
    )


def _part(result: _SearchResult, *, top: int, tolerance: float) -> MixedPart:
    """Build the mixed part of the certificate: each pool alone, next best plans, the proof."""
    state, closings = result.state, result.closings
    closed = tuple(
        ClosedSubspaces(options=options, duals=tuple(c.closed.values()))
        for options, c in zip(result.pipeline_sets, closings, strict=True)
    )
    stage_costs_of = stage_costs_by_options(result.pipeline_sets)
    worth, best = (
        device_worth_seconds(closed, [one.pool.node for one in result.singles]),
        state.mixed,
    )
    return MixedPart(
        shapes=sum(len(closing.pipelines.shapes) for closing in closings),
        alone=tuple(
            one.for_certificate(worth_s) for one, worth_s in zip(result.singles, worth, strict=True)
        ),
        closed=closed,
        tests=sum(closing.tests for closing in closings),
        # A tighter one that was met by the way is not claimed: with a node less it might not have
        # been, and no node more raises a bound.
        lower_bound_s=min(result.lower_s, limit_for_gap(state.best_s, tolerance))
        if closings
        else 0.0,
        tolerance=tolerance,
        pipelines=pipelines_text(closings[0].pipelines.stage_costs.table, best)
        if best is not None
        else "",
        runners=runners_up(state, stage_costs_of, top=top),
        composed_stopped_at=state.limit.stopped_at,
        why_alone=why_no_pipelines(state.problem),
    )
