"""Search of pipelines with a named order (1F1B, interleaved): a lower bound of every pipeline by
labels, then its members in the order of the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import order_table
from shardwright.lazy_dataclass import dataclass
from shardwright.search.joint.chunk_layer_counts import (
    layer_count_bounds,
    layer_count_path,
    layer_counts,
    least_redone,
    shape_times,
)
from shardwright.search.joint.joint_member import plan_of_cut, plan_of_sizes, split_grid
from shardwright.search.joint.label_arrays import is_alike
from shardwright.search.joint.label_options import Pipeline, Splits
from shardwright.search.joint.pipeline_shapes import PipelineShape
from shardwright.search.joint.search_progress import BOUNDED, Bounding, Footing, Looked, Search
from shardwright.search.joint.solve_pipeline import Cut, Solved, solve
from shardwright.search.joint.work_bounds import shape_bounds
from shardwright.search.parallel.engine_protocol import rounds

FIRST_LOOKS = 48
"""Pipelines that are looked at before any is bounded by labels."""
SCORED = 16
"""Pipelines whose members are looked at between two looks at the clock, all against the best that
was known before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """A task: score and simulate the members of a pipeline that may be faster than `best_s`; those
    of `cuts`, or with several chunks a rank all.

    Args:
        lower_s: no member ends before.
    """

    pipeline: PipelineShape
    cuts: tuple[Cut, ...]
    lower_s: float
    best_s: float


def search_named(search: Search) -> bool:
    """Bound all pipelines whose work alone is below the best plan, then look at their members in
    the order of the bounds; True if all was done in time.
    """
    footing = search.footing
    quick = (
        shape_bounds(footing.problem, footing.shaped, footing.chain, footing.facts) * footing.jitter
    )
    order = np.argsort(quick, kind="stable").tolist()
    _begin(search, order[:FIRST_LOOKS])
    waiting = _bounded(search, [(float(quick[place]), place) for place in order])
    return _scored(search, waiting) and -1 not in search.lower


def _bounded(search: Search, order: Sequence[tuple[float, int]]) -> list[tuple[float, int, Solved]]:
    """Pipelines whose bound by labels is below the best plan, as (bound in seconds, place, cuts),
    the least bound first.

    Args:
        order: pipelines with what their work alone takes, the least first.
    """
    waiting: list[tuple[float, int, Solved]] = []
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
        tasks = [Bounding(pipeline=pipeline, enough_s=search.enough_s) for pipeline in pipelines]
        left -= len(close)
        for place, solved in zip(
            close, search.engine.map(bounded, tasks, shared=search.footing, more=left), strict=True
        ):
            if solved is None:
                continue
            if solved.cuts:
                norm = search.footing.norm(search.shaped.pipelines[place])
                waiting.append(((solved.lower_s + norm) * search.footing.jitter, place, solved))
            else:
                # Nothing fits, or nothing ends before what is good enough.
                search.lower[-3] = search.enough_s
        if len(close) < len(batch):
            search.lower[-2] = batch[len(close)][0]
            break
    search.say("bound cuts", len(order), len(order))
    return sorted(waiting, key=lambda entry: entry[0])


def bounded(footing: Footing, task: Bounding) -> Solved | None:
    """Lower bound and cuts of a pipeline by labels; None where it has more chunks than the model
    has layers.
    """
    pipeline, chain = task.pipeline, footing.chain
    if pipeline.chunks > 1 and pipeline.ranks * pipeline.chunks > len(chain) + 2:
        return None
    splits, pipe = footing.splits(pipeline), footing.pipe(pipeline)
    limit = task.enough_s / footing.jitter - footing.norm(pipeline)
    return solve(splits, pipe, limit=limit, alike=is_alike(chain) or pipeline.chunks > 1)


def _scored(search: Search, waiting: Sequence[tuple[float, int, Solved]]) -> bool:
    """Look at the members of the pipelines whose bound is below the best plan, the least bound
    first; True if the time limit did not pass.
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
            Scoring(
                pipeline=search.shaped.pipelines[place],
                cuts=solved.cuts,
                lower_s=bound_s,
                best_s=search.best_s,
            )
            for bound_s, place, solved in close
        ]
        left = sum(bound_s < search.enough_s for bound_s, _, _ in waiting[(number + 1) * SCORED :])
        for (_, place, _), looked in zip(
            close, search.engine.map(scored, tasks, shared=search.footing, more=left), strict=True
        ):
            search.lower[place] = looked.lower_s
            search.take(looked)
        if len(close) < len(batch):
            bound_s, place, _ = batch[len(close)]
            search.lower[place] = bound_s
            break
    return True


def scored(footing: Footing, task: Scoring) -> Looked:
    """Results of scoring the members of one pipeline."""
    part, pipeline, lower_s = (
        Search(footing=footing, best_s=task.best_s),
        task.pipeline,
        task.lower_s,
    )
    if pipeline.chunks == 1:
        for cut in task.cuts:
            part.attempt(plan_of_cut(footing.shaped, pipeline, cut))
    else:
        lower_s = _spread(
            part, pipeline, footing.pipe(pipeline), footing.exact_splits(pipeline), lower_s
        )
    return part.looked(lower_s)


def _begin(search: Search, places: list[int]) -> None:
    """Try one shape of each of a few promising pipelines, so that there is a good plan before
    all are bounded; they are counted when they come up again.
    """
    counted = (search.infeasible, search.scored, search.simulated)
    footing = search.footing
    for place in places:
        if search.limit.passed():
            break
        pipeline = search.shaped.pipelines[place]
        if pipeline.chunks == 1:
            continue
        shapes = layer_counts(len(footing.chain), pipeline.ranks, pipeline.chunks)
        if len(shapes):
            exact = footing.exact_splits(pipeline)
            shape = shapes[int(layer_count_bounds(exact, footing.pipe(pipeline), shapes).argmin())]
            redone = least_redone(exact, footing.pipe(pipeline), shape)
            if redone is not None:
                search.attempt(plan_of_sizes(search.shaped, pipeline, shape, redone))
    search.infeasible, search.scored, search.simulated = counted


def _spread(
    search: Search, pipeline: PipelineShape, pipe: Pipeline, exact: Splits, bound: float
) -> float:
    """Try every shape of a pipeline with several chunks a rank in the order of its bound;
    returns a lower bound in seconds of the shapes that were not simulated.
    """
    norm, jitter = search.footing.norm(pipeline), search.footing.jitter
    shapes = layer_counts(len(search.footing.chain), pipeline.ranks, pipeline.chunks)
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
        """Lower bound in seconds of a shape: its longest path, less what its clock rounds."""
        seconds = layer_count_path(times, pipe, table, place, redone)
        return (seconds + norm) * jitter * (1 - 1e-7)

    paths: list[tuple[float, int]] = []
    recomputed: dict[int, IntArray] = {}
    for place, row in enumerate(close.tolist()):
        path = path_of(place)
        if path < search.enough_s:
            needed = least_redone(exact, pipe, shapes[row])
            if needed is None:
                search.infeasible += 1
                continue
            if needed.any():
                recomputed[row], path = needed, path_of(place, needed)
        paths.append((path, row))
    # A shape whose path is not below the best is bounded by its path, any other by what becomes of
    # it; so no shape of the pipeline is below the least of these and of the shapes left out above.
    for path, row in sorted(paths):
        if path >= search.enough_s:
            search.scored += 1
            lower_s = min(lower_s, path)
        else:
            plan = plan_of_sizes(search.shaped, pipeline, shapes[row], recomputed.get(row))
            lower_s = min(lower_s, search.attempt(plan))
    return max(bound, lower_s)
