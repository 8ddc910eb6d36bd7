"""Plans of one shape, whose replicas sum gradients stage by stage and wait for no others'."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.pipeline_subsets import weights_of
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines, Values
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks, TaskInputs
from shardwright.search.mixed.plans.composition_search import whole_frame
from shardwright.search.mixed.plans.simulated_plans import (
    Lanes,
    MixedCandidate,
    Standing,
    candidate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Replicas that share the batch equally.

    Args:
        pipelines_index: place of their pipelines in `TaskInputs.pipeline_sets`.
        limit_s: by which they end.
        whole: what is known of shapes by then of any number of replicas.
    """

    pipelines_index: int
    options: Options
    replicas: int
    limit_s: float
    whole: Values


def compose_one_shape(
    standing: Standing, tasks: SearchTasks, pipelines: PricedPipelines, options: Options
) -> None:
    """Let plans of one shape wait: of each number of replicas that shares the batch equally the
    shapes that end first.
    """
    if standing.ends():
        return
    limit = (
        standing.best_s * pipelines.effort.latest_limit_ratio
        if isfinite(standing.best_s)
        else LONGEST_STEP_S
    )
    place, shapes = tasks.place(pipelines), pipelines.shapes
    # Lanes of one stage that shard are grids of a pool.
    several = bool((shapes.sharded & (shapes.stages.sum(axis=1) > 1)).any())
    for sharded in (*((False,) if not shapes.sharded.all() else ()), *((True,) if several else ())):
        _compose_equal(
            standing,
            tasks,
            pipelines,
            options,
            pipelines.values(whole_frame(pipelines, sharded=sharded, alone=sharded), limit),
            place,
        )


def _compose_equal(
    standing: Standing,
    tasks: SearchTasks,
    pipelines: PricedPipelines,
    options: Options,
    whole: Values,
    place: int,
) -> None:
    limit = whole.limit_s
    counts = [
        replicas
        for replicas in range(1, pipelines.stage_costs.most_replicas + 1)
        if pipelines.batch % replicas == 0
    ]
    asked = [
        Equal(pipelines_index=place, options=options, replicas=replicas, limit_s=limit, whole=whole)
        for replicas in counts
    ]
    for found in tasks.map(shapes_that_end, asked):
        for lanes, one in found:
            standing.wait(lanes, one, options)


def shapes_that_end(inputs: TaskInputs, asked: Equal) -> list[tuple[Lanes, MixedCandidate | None]]:
    """Lanes that do the batch by the limit, cut, of the shapes that fill most of the cluster."""
    pipelines, replicas = inputs.pipeline_sets[asked.pipelines_index], asked.replicas
    shapes = pipelines.shapes
    each = np.where(
        pipelines.batch % (replicas * shapes.mbs) == 0,
        pipelines.batch // (replicas * shapes.mbs),
        0,
    )
    room = (
        (each > 0)
        & (replicas * shapes.use <= pipelines.devices).all(axis=1)
        & (asked.whole.microbatches >= each)
    )
    room &= (
        (shapes.sharded == asked.whole.frame.sharded)
        & (shapes.least <= replicas)
        & (replicas <= shapes.most)
    )
    which = np.flatnonzero(room)
    if not len(which):
        return []
    frame = replace(asked.whole.frame, replicas=(replicas, replicas))
    values = pipelines.values(frame, asked.limit_s, asked.whole)
    values.microbatches = np.minimum(values.microbatches, each)
    # Those that fill most of the cluster first: few others can be best.
    which = which[
        np.argsort(-(shapes.use[which] @ weights_of(pipelines)), kind="stable")[
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
            candidate(
                pipelines, lanes, asked.limit_s / pipelines.effort.lane_limit_ratio, asked.options
            ),
        )
        for lanes in alone
    ]
