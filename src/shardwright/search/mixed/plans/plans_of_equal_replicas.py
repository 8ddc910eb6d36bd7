"""Plans of one pipeline shape, whose replicas share the batch equally.

Their gradients are reduced stage by stage and wait for no other shape.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
)
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks, TaskInputs
from shardwright.search.mixed.pipelines.subsets_by_pool_speed_and_zone import pool_layer_rates
from shardwright.search.mixed.plans.plan_search_state import (
    Lanes,
    MixedCandidate,
    SearchState,
    make_candidate,
)
from shardwright.search.mixed.stages.subspaces_and_stage_costs import full_subspace


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualReplicas:
    """A task: find plans of one shape whose replicas share the batch equally.

    Args:
        pipelines_index: index of their pipelines in `TaskInputs.pipeline_sets`.
        limit_s: step-time limit in seconds.
        whole: shape values at that limit, for any number of replicas.
    """

    pipelines_index: int
    options: Options
    replicas: int
    limit_s: float
    whole: ShapeMicrobatches


def compose_one_shape(
    state: SearchState, tasks: SearchTasks, pipelines: PricedPipelines, options: Options
) -> None:
    """Queue plans of one pipeline shape each, for every replica count that divides the batch."""
    if state.ends():
        return
    limit = (
        state.best_s * pipelines.effort.latest_limit_ratio
        if isfinite(state.best_s)
        else LONGEST_STEP_S
    )
    place, shapes = tasks.index_of(pipelines), pipelines.shapes
    # Lanes of one stage that shard are grids of a pool.
    several = bool((shapes.sharded & (shapes.stages.sum(axis=1) > 1)).any())
    for sharded in (*((False,) if not shapes.sharded.all() else ()), *((True,) if several else ())):
        _queue_equal_shares(
            state,
            tasks,
            pipelines,
            options,
            pipelines.values(
                full_subspace(pipelines.stage_costs, sharded=sharded, alone=sharded), limit
            ),
            place,
        )


def _queue_equal_shares(
    state: SearchState,
    tasks: SearchTasks,
    pipelines: PricedPipelines,
    options: Options,
    values: ShapeMicrobatches,
    pipelines_index: int,
) -> None:
    """Run the tasks of all replica counts that divide the batch, and queue their plans."""
    limit = values.limit_s
    counts = [
        replicas
        for replicas in range(1, pipelines.stage_costs.most_replicas + 1)
        if pipelines.batch % replicas == 0
    ]
    tasks_by_count = [
        EqualReplicas(
            pipelines_index=pipelines_index,
            options=options,
            replicas=replicas,
            limit_s=limit,
            whole=values,
        )
        for replicas in counts
    ]
    for lanes_and_candidates in tasks.map(lanes_of_equal_replicas, tasks_by_count):
        for lanes, candidate in lanes_and_candidates:
            state.queue_candidate(lanes, candidate, options)


def lanes_of_equal_replicas(
    inputs: TaskInputs, task: EqualReplicas
) -> list[tuple[Lanes, MixedCandidate | None]]:
    """(lanes, candidate) of one shape with all replicas equal, by the limit; None = no cut fits.

    Of the shapes that fill most of the cluster.
    """
    pipelines, replicas = inputs.pipeline_sets[task.pipelines_index], task.replicas
    shapes = pipelines.shapes
    each = np.where(
        pipelines.batch % (replicas * shapes.mbs) == 0,
        pipelines.batch // (replicas * shapes.mbs),
        0,
    )
    possible = (
        (each > 0)
        & (replicas * shapes.use <= pipelines.devices).all(axis=1)
        & (task.whole.microbatches >= each)
    )
    possible &= (
        (shapes.sharded == task.whole.subspace.sharded)
        & (shapes.least <= replicas)
        & (replicas <= shapes.most)
    )
    which = np.flatnonzero(possible)
    if not len(which):
        return []
    subspace = replace(task.whole.subspace, replicas=(replicas, replicas))
    values = pipelines.values(subspace, task.limit_s, task.whole)
    values.microbatches = np.minimum(values.microbatches, each)
    # The shapes that fill most of the cluster first: few others can be best.
    which = which[
        np.argsort(-(shapes.use[which] @ pool_layer_rates(pipelines)), kind="stable")[
            : pipelines.effort.equal_shapes
        ]
    ]
    pipelines.refine(values, which, above=each[which] - 1)
    ends = which[values.microbatches[which] == each[which]]
    alone: list[Lanes] = [
        [(shape, replicas, microbatches)]
        for shape, microbatches in zip(ends.tolist(), each[ends].tolist(), strict=True)
    ]
    return [
        (
            lanes,
            make_candidate(
                pipelines, lanes, task.limit_s / pipelines.effort.lane_limit_ratio, task.options
            ),
        )
        for lanes in alone
    ]
