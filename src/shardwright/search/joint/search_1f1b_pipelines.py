"""Joint search of pipelines with a named schedule (1F1B or interleaved 1F1B), best bound first.

Every pipeline is bounded by labels, then its members are scored in the order of the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import order_table
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.joint.chunk_layer_counts_with_time_bounds import (
    layer_count_bounds,
    layer_count_path_s,
    layer_counts,
    least_full_recompute,
    shape_times,
)
from shardwright.search.joint.joint_plan_and_step_costs import (
    plan_of_cut,
    plan_of_sizes,
    split_grid,
)
from shardwright.search.joint.joint_search_state import (
    BOUNDED,
    BoundTask,
    JointInputs,
    JointSearchState,
    TaskResult,
)
from shardwright.search.joint.joint_space import PipelineShape
from shardwright.search.joint.label_dynamic_program_inputs import has_equal_layers
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import (
    Cut,
    PipelineBound,
    bound_pipeline,
)
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import Pipeline, Splits
from shardwright.search.joint.work_bounds import pipeline_work_bounds
from shardwright.search.parallel.engine_protocol import rounds

FIRST_LOOKS = 48
"""Pipelines of which one plan is scored before any pipeline is bounded by labels."""
SCORED = 16
"""Pipelines whose members are scored between two checks of the clock.

All of them against the best plan known before.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringTask:
    """A task: score and simulate the members of a pipeline that may be faster than `best_s`.

    Args:
        cuts: layer cuts of the members; with several chunks a rank all members are scored.
        lower_s: lower bound in seconds on every member.
    """

    pipeline: PipelineShape
    cuts: tuple[Cut, ...]
    lower_s: float
    best_s: float


def search_named_orders(search: JointSearchState) -> bool:
    """Search all pipelines with a named schedule; True if the time sufficed.

    Pipelines whose work alone is below the best plan are bounded, then their members are scored in
    the order of the bounds.
    """
    inputs = search.inputs
    quick = (
        pipeline_work_bounds(inputs.problem, inputs.shaped, inputs.chain, inputs.facts)
        * inputs.jitter
    )
    order = np.argsort(quick, kind="stable").tolist()
    _score_first_plans(search, order[:FIRST_LOOKS])
    waiting = _bound_pipelines(search, [(float(quick[place]), place) for place in order])
    return _score_pipelines(search, waiting) and -1 not in search.lower


def _bound_pipelines(
    search: JointSearchState, order: Sequence[tuple[float, int]]
) -> list[tuple[float, int, PipelineBound]]:
    """Pipelines whose label bound is below the best plan, as (bound in seconds, index, cuts).

    The least bound comes first.

    Args:
        order: (lower bound in seconds by work alone, index) of the pipelines, the least first.
    """
    waiting: list[tuple[float, int, PipelineBound]] = []
    left = sum(bound_s < search.enough_s for bound_s, _ in order)
    # Pipelines come in the order of the bounds by their work alone. Where the loop ends early, the
    # bound of the first pipeline that is left holds for all behind it: `search.lower` keeps it
    # under a number below 0.
    for number, batch in enumerate(rounds(order, size=BOUNDED)):
        if batch[0][0] < search.enough_s and search.limit.passed():
            search.lower[-1] = batch[0][0]
            break
        if number % 4 == 0:
            search.say("bound cuts", number * BOUNDED, len(order))
        close = [place for bound_s, place in batch if bound_s < search.enough_s]
        pipelines = [search.shaped.pipelines[place] for place in close]
        tasks = [BoundTask(pipeline=pipeline, enough_s=search.enough_s) for pipeline in pipelines]
        left -= len(close)
        for place, solved in zip(
            close,
            search.engine.map(run_bound_task, tasks, shared=search.inputs, more=left),
            strict=True,
        ):
            if solved is None:
                continue
            if solved.cuts:
                norm = search.inputs.gradient_norm_s(search.shaped.pipelines[place])
                waiting.append(((solved.lower_s + norm) * search.inputs.jitter, place, solved))
            else:
                # No member fits, or none ends before the bound that rules members out.
                search.lower[-3] = search.enough_s
        if len(close) < len(batch):
            search.lower[-2] = batch[len(close)][0]
            break
    search.say("bound cuts", len(order), len(order))
    return sorted(waiting, key=lambda entry: entry[0])


def run_bound_task(inputs: JointInputs, task: BoundTask) -> PipelineBound | None:
    """Lower bound and layer cuts of a pipeline by dynamic programming; None = too few layers."""
    pipeline, chain = task.pipeline, inputs.chain
    if pipeline.chunks > 1 and pipeline.ranks * pipeline.chunks > len(chain) + 2:
        return None
    splits, pipe = inputs.splits(pipeline), inputs.label_pipeline(pipeline)
    limit = task.enough_s / inputs.jitter - inputs.gradient_norm_s(pipeline)
    return bound_pipeline(
        splits, pipe, limit=limit, alike=has_equal_layers(chain) or pipeline.chunks > 1
    )


def _score_pipelines(
    search: JointSearchState, waiting: Sequence[tuple[float, int, PipelineBound]]
) -> bool:
    """Score the members of the pipelines, the least bound first; True if the time sufficed.

    Only pipelines whose bound is below the best plan.
    """
    # Pipelines come in the order of their bounds by labels: once one is not below the best plan,
    # none behind it is, and its bound holds for all of them.
    for number, batch in enumerate(rounds(waiting, size=SCORED)):
        lower_s, place_ahead, _ = batch[0]
        search.lower[place_ahead] = lower_s
        if lower_s >= search.enough_s:
            break
        if search.limit.passed():
            return False
        search.say("score cuts", number * SCORED, len(waiting), lower_s=lower_s)
        close = [entry for entry in batch if entry[0] < search.enough_s]
        tasks = [
            ScoringTask(
                pipeline=search.shaped.pipelines[place],
                cuts=solved.cuts,
                lower_s=bound_s,
                best_s=search.best_s,
            )
            for bound_s, place, solved in close
        ]
        left = sum(bound_s < search.enough_s for bound_s, _, _ in waiting[(number + 1) * SCORED :])
        for (_, place, _), result in zip(
            close,
            search.engine.map(run_scoring_task, tasks, shared=search.inputs, more=left),
            strict=True,
        ):
            search.lower[place] = result.lower_s
            search.add_result(result)
        if len(close) < len(batch):
            bound_s, place, _ = batch[len(close)]
            search.lower[place] = bound_s
            break
    return True


def run_scoring_task(inputs: JointInputs, task: ScoringTask) -> TaskResult:
    """Score and simulate the members of one pipeline."""
    part, pipeline, lower_s = (
        JointSearchState(inputs=inputs, best_s=task.best_s),
        task.pipeline,
        task.lower_s,
    )
    if pipeline.chunks == 1:
        for cut in task.cuts:
            part.score(plan_of_cut(inputs.shaped, pipeline, cut))
    else:
        lower_s = _score_layer_counts(
            part, pipeline, inputs.label_pipeline(pipeline), inputs.exact_splits(pipeline), lower_s
        )
    return part.task_result(lower_s)


def _score_first_plans(search: JointSearchState, pipeline_indices: list[int]) -> None:
    """Score one plan of each of a few pipelines with several chunks a rank, before all are bounded.

    The plans are counted when they come up again.
    """
    counted = (search.infeasible, search.scored, search.simulated)
    inputs = search.inputs
    for place in pipeline_indices:
        if search.limit.passed():
            break
        pipeline = search.shaped.pipelines[place]
        if pipeline.chunks == 1:
            continue
        shapes = layer_counts(len(inputs.chain), pipeline.ranks, pipeline.chunks)
        if len(shapes):
            exact = inputs.exact_splits(pipeline)
            shape = shapes[
                int(layer_count_bounds(exact, inputs.label_pipeline(pipeline), shapes).argmin())
            ]
            redone = least_full_recompute(exact, inputs.label_pipeline(pipeline), shape)
            if redone is not None:
                search.score(plan_of_sizes(search.shaped, pipeline, shape, redone))
    search.infeasible, search.scored, search.simulated = counted


def _score_layer_counts(
    search: JointSearchState, pipeline: PipelineShape, pipe: Pipeline, exact: Splits, bound: float
) -> float:
    """Score layer spreads with several chunks a rank by bound; return a seconds bound on all.

    Returns a lower bound in seconds on the spreads that were not simulated.
    """
    norm, jitter = search.inputs.gradient_norm_s(pipeline), search.inputs.jitter
    shapes = layer_counts(len(search.inputs.chain), pipeline.ranks, pipeline.chunks)
    bounds = (layer_count_bounds(exact, pipe, shapes) + norm) * jitter
    grid = split_grid(search.shaped, pipeline.outers[0], chunks=pipeline.chunks, zero=pipeline.zero)
    table = order_table(grid, microbatches=pipeline.microbatches)
    order = np.argsort(bounds, kind="stable")
    close = order[bounds[order] < search.enough_s]
    lower_s = float(bounds[order[len(close)]]) if len(close) < len(order) else float("inf")
    times = shape_times(
        exact, pipe, shapes[close], pieces=search.problem.runtime.overlap_grad_reduce
    )

    def path_of(place: int, redone: IntArray | None = None) -> float:
        """Bound in seconds of layers spread over ranks: longest path, less clock rounding."""
        seconds = layer_count_path_s(times, pipe, table, place, redone)
        return (seconds + norm) * jitter * (1 - 1e-7)

    paths: list[tuple[float, int]] = []
    recomputed: dict[int, IntArray] = {}
    for place, row in enumerate(close.tolist()):
        path = path_of(place)
        if path < search.enough_s:
            needed = least_full_recompute(exact, pipe, shapes[row])
            if needed is None:
                search.infeasible += 1
                continue
            if needed.any():
                recomputed[row], path = needed, path_of(place, needed)
        paths.append((path, row))
    # A spread whose path is not below the best is bounded by its path, any other by its simulation;
    # so no spread of the pipeline is below the least of these and of the spreads left out above.
    for path, row in sorted(paths):
        if path >= search.enough_s:
            search.scored += 1
            lower_s = min(lower_s, path)
        else:
            plan = plan_of_sizes(search.shaped, pipeline, shapes[row], recomputed.get(row))
            lower_s = min(lower_s, search.score(plan))
    return max(bound, lower_s)
