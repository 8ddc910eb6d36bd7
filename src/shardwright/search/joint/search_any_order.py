"""Joint search of pipelines with any static action order.

Every pipeline gets a lower bound over all orders; then orders are searched for the most promising
cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.joint.chunk_layer_counts_with_time_bounds import (
    any_order_bounds,
    layer_counts,
)
from shardwright.search.joint.joint_plan_and_step_costs import (
    JointPlan,
    joint_step_costs,
    plan_of_cut,
    plan_of_sizes,
)
from shardwright.search.joint.joint_search_state import (
    BOUNDED,
    BoundTask,
    JointInputs,
    JointSearchState,
)
from shardwright.search.joint.joint_space import PipelineShape, ShapedSpace
from shardwright.search.joint.label_dynamic_program_inputs import has_equal_layers
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import bound_pipeline
from shardwright.search.joint.recompute_with_order import search_recompute_and_order
from shardwright.search.joint.score_joint_plan import ScoredPlan, path_score
from shardwright.search.joint.search_order_of_joint_plan_within_memory import (
    OrderedPlan,
    order_bound,
    with_found_order,
    with_named_orders,
)
from shardwright.search.joint.work_bounds import pipeline_work_bounds
from shardwright.search.parallel.engine_protocol import rounds

CHUNKS = (2, 4, 8)
"""Chunks a rank of the pipelines with several chunks."""
SHAPES = 2
"""Layer spreads that are kept of a pipeline with several chunks a rank."""
WEIGHED = 400
"""Plans that are bounded under the memory limit, the least bounds first."""
SKETCHED = 20
"""Plans that get a short order search, the least bounds first."""
SKETCH = 0.05
"""Share of a full order search's changes in a short one."""
REFINED = 4
"""Plans that get a full order search."""
MEMORY = 0.2
"""Share of a full order search's changes in the search of order and recomputation together."""
SKETCHES, SEARCHES = 8, 2
"""Short and full order searches between two checks of the clock."""
FINISHED = 3
"""Plans with found orders that are simulated."""
CLOSE = 1.01
"""Largest ratio of an estimate to the best known time for a full order search."""


def any_order_pipelines(
    shaped: ShapedSpace, layers: int, *, chunks_per_rank: Sequence[int] = CHUNKS
) -> tuple[PipelineShape, ...]:
    """Pipelines with any static order: one chunk a rank, and several for each split alone.

    The chunks run over the ranks in a loop or, for two chunks, on a V.
    """
    single = [pipeline for pipeline in shaped.pipelines if pipeline.chunks == 1]
    pipelines = [replace(pipeline, any_order=True) for pipeline in single]
    lone = dict.fromkeys(
        (outer, pipeline.ranks, pipeline.microbatches, pipeline.zero)
        for pipeline in single
        for outer in pipeline.outers
    )
    for outer, ranks, microbatches, zero in lone:
        for chunks in chunks_per_rank:
            if chunks * ranks <= layers + 2 and ranks > 1:
                pipeline = PipelineShape(
                    outers=(outer,),
                    ranks=ranks,
                    chunks=chunks,
                    microbatches=microbatches,
                    zero=zero,
                    any_order=True,
                )
                pipelines += (
                    [pipeline, replace(pipeline, folded=True)] if chunks == 2 else [pipeline]
                )
    return tuple(pipelines)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedPlan:
    """A joint plan with a lower bound on its step in seconds over all orders."""

    bound_s: float
    plan: JointPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTask:
    """A task: search the action order of a plan.

    Args:
        share: share of the search effort.
        with_recompute: choose the recomputation together with the order.
    """

    plan: JointPlan
    share: float
    with_recompute: bool = False


def search_any_orders(
    search: JointSearchState, pipelines: tuple[PipelineShape, ...], *, share: float = 1.0
) -> bool:
    """Bound pipelines over all orders, search orders of the best plans; True if time sufficed.

    Returns True if the time limit did not pass. Bounds go into `search.lower` after those of the
    pipelines with named schedules.

    Args:
        share: share of the plans that get order searches.
    """
    inputs = search.inputs
    quick = (
        pipeline_work_bounds(
            inputs.problem,
            replace(inputs.shaped, pipelines=pipelines),
            inputs.chain,
            inputs.facts,
        )
        * inputs.jitter
    )
    order = np.argsort(quick, kind="stable").tolist()
    waiting = _bound_pipelines(search, pipelines, [(float(quick[place]), place) for place in order])
    if search.best is not None and len(search.best.plan.chunks) == search.best.plan.ranks:
        waiting.append(BoundedPlan(bound_s=0.0, plan=search.best.plan))
    waiting.sort(key=lambda candidate: candidate.bound_s)
    sketched, refined = (max(round(count * share), 1) for count in (SKETCHED, REFINED))
    sketches = _search_orders_briefly(search, _promising(search, waiting)[:sketched])
    _search_orders_fully(search, sketches[:refined])
    return not search.limit.passed()


def _bound_pipelines(
    search: JointSearchState,
    pipelines: tuple[PipelineShape, ...],
    order: Sequence[tuple[float, int]],
) -> list[BoundedPlan]:
    """Plans with the least lower bounds of every pipeline whose bound is below the best plan.

    Args:
        order: (lower bound in seconds by work alone, index) of the pipelines, the least first.
    """
    # Every pipeline stays at its bound over all orders, as the orders found for a few of its cuts
    # prove nothing of the others; those behind the loop's end are not below the first of them.
    offset, waiting = len(search.shaped.pipelines), list[BoundedPlan]()
    left = sum(bound_s < search.enough_s for bound_s, _ in order)
    for number, batch in enumerate(rounds(order, size=BOUNDED)):
        close = [place for bound_s, place in batch if bound_s < search.enough_s]
        if close and number and search.limit.passed():
            close = []
        tasks = [BoundTask(pipeline=pipelines[place], enough_s=search.enough_s) for place in close]
        left -= len(close)
        for place, (lower, plans) in zip(
            close,
            search.engine.map(run_any_order_bound_task, tasks, shared=search.inputs, more=left),
            strict=True,
        ):
            search.lower[offset + place] = min(lower, search.enough_s)
            waiting += plans
        search.say("bound cuts of any order", number * BOUNDED + len(close), len(order))
        if len(close) < len(batch):
            bound_s, place = batch[len(close)]
            search.lower[offset + place] = bound_s
            break
    return waiting


def run_any_order_bound_task(
    inputs: JointInputs, task: BoundTask
) -> tuple[float, list[BoundedPlan]]:
    """Lower bound of a pipeline in seconds over all orders, and its plans that may be the best."""
    return (_bound_cuts if task.pipeline.chunks == 1 else _bound_layer_counts)(
        inputs, task.pipeline, task.enough_s
    )


def _bound_cuts(
    inputs: JointInputs, pipeline: PipelineShape, enough_s: float
) -> tuple[float, list[BoundedPlan]]:
    """Lower bound of a pipeline with one chunk a rank, and plans with the cuts near the bound."""
    norm = inputs.gradient_norm_s(pipeline)
    limit = enough_s / inputs.jitter - norm
    solved = bound_pipeline(
        inputs.splits(pipeline),
        inputs.label_pipeline(pipeline),
        limit=limit,
        alike=has_equal_layers(inputs.chain),
    )
    lower = (solved.lower_s + norm) * inputs.jitter
    return lower, [
        BoundedPlan(bound_s=lower, plan=plan_of_cut(inputs.shaped, pipeline, cut))
        for cut in solved.cuts
    ]


def _bound_layer_counts(
    inputs: JointInputs, pipeline: PipelineShape, enough_s: float
) -> tuple[float, list[BoundedPlan]]:
    """Lower bound of a pipeline with several chunks a rank, and the plans with the least bounds."""
    shaped = inputs.shaped
    shapes = layer_counts(len(inputs.chain), pipeline.ranks, pipeline.chunks)
    if not len(shapes):
        return float("inf"), []
    exact = inputs.cached_splits(pipeline)
    owners = np.array(plan_of_sizes(shaped, pipeline, shapes[0]).owners)
    bounds = (
        any_order_bounds(exact, inputs.label_pipeline(pipeline), shapes, owners)
        + inputs.gradient_norm_s(pipeline)
    ) * inputs.jitter
    best = np.argsort(bounds, kind="stable")[:SHAPES]
    plans = [plan_of_sizes(shaped, pipeline, shapes[row]) for row in best]
    candidates = [
        BoundedPlan(bound_s=float(bounds[row]), plan=plan)
        for row, plan in zip(best, plans, strict=True)
    ]
    return float(bounds.min()), [
        candidate for candidate in candidates if candidate.bound_s < enough_s
    ]


def _promising(search: JointSearchState, waiting: list[BoundedPlan]) -> list[BoundedPlan]:
    """Distinct plans with a memory-limited bound below the best, least first by kind in turn."""
    bounded_places: list[tuple[float, int]] = []
    for number, batch in enumerate(rounds(waiting[:WEIGHED], size=BOUNDED)):
        if search.limit.passed():
            break
        bounds = search.engine.map(
            bound_over_orders, [candidate.plan for candidate in batch], shared=search.inputs
        )
        bounded_places += [
            (bound, number * BOUNDED + place)
            for place, bound in enumerate(bounds)
            if bound < search.enough_s
        ]
    # Splits that differ only in the gradient reductions have the same orders.
    distinct: dict[object, BoundedPlan] = {}
    for bound, place in sorted(bounded_places):
        plan = waiting[place].plan
        distinct.setdefault(
            (round(bound, 9), plan.chunks, plan.folded, plan.microbatches), waiting[place]
        )
    return _interleave_kinds(list(distinct.values()))


def bound_over_orders(inputs: JointInputs, plan: JointPlan) -> float:
    """Lower bound in seconds on a plan over the orders that fit in memory; inf if none fits."""
    return order_bound(inputs.problem, inputs.shaped, plan, capacity=inputs.capacity)


def _interleave_kinds(candidates: list[BoundedPlan]) -> list[BoundedPlan]:
    """Interleave plans by kind (chunks a rank, loop or V): the first of each, then the second."""
    turns: Counter[tuple[int, bool]] = Counter()
    keys: list[int] = []
    for candidate in candidates:
        kind = candidate.plan.chunks_per_rank, candidate.plan.folded
        keys.append(turns[kind])
        turns[kind] += 1
    return [
        candidate
        for _, candidate in sorted(zip(keys, candidates, strict=True), key=lambda pair: pair[0])
    ]


def run_order_task(inputs: JointInputs, task: OrderTask) -> OrderedPlan | None:
    """The plan of a task with the best order found for it; None where no order fits in memory."""
    find = search_recompute_and_order if task.with_recompute else with_found_order
    return find(
        inputs.problem,
        inputs.shaped,
        task.plan,
        capacity=inputs.capacity,
        effort=task.share * inputs.effort,
    )


def _search_orders_briefly(
    search: JointSearchState, candidates: list[BoundedPlan]
) -> list[OrderedPlan]:
    """Run short order searches for plans; return those close to the best step, fastest first."""
    sketches: list[OrderedPlan] = []
    for number, batch in enumerate(rounds(candidates, size=SKETCHES)):
        if search.limit.passed():
            break
        tasks = [OrderTask(plan=candidate.plan, share=SKETCH) for candidate in batch]
        orders = search.engine.map(run_order_task, tasks, shared=search.inputs)
        sketches += [
            replace(sketch, bound_s=candidate.bound_s)
            for candidate, sketch in zip(batch, orders, strict=True)
            if sketch is not None and sketch.estimate_s < search.best_s * CLOSE
        ]
        search.say(
            "sketch orders",
            number * SKETCHES + len(batch),
            len(candidates),
            lower_s=search.lower_s,
        )
    return sorted(sketches, key=lambda sketch: sketch.estimate_s)


def _search_orders_fully(search: JointSearchState, sketches: list[OrderedPlan]) -> None:
    """Run full order searches for the best sketched plans, and simulate the best results."""
    refined: list[OrderedPlan] = []
    for number, batch in enumerate(rounds(sketches, size=SEARCHES)):
        if search.limit.passed():
            refined.append(batch[0])
            break
        bare = [replace(sketch.plan, table=None) for sketch in batch]
        tasks = [
            *(OrderTask(plan=plan, share=1.0) for plan in bare),
            *(OrderTask(plan=plan, share=MEMORY, with_recompute=True) for plan in bare),
        ]
        orders = search.engine.map(run_order_task, tasks, shared=search.inputs)
        for sketch, in_full, with_recompute in zip(
            batch, orders[: len(batch)], orders[len(batch) :], strict=True
        ):
            best = min(
                (order for order in (sketch, in_full, with_recompute) if order is not None),
                key=lambda order: order.estimate_s,
            )
            refined.append(replace(best, bound_s=sketch.bound_s))
        search.say(
            "search orders", number * SEARCHES + len(batch), len(sketches), lower_s=search.lower_s
        )
    for best in sorted(refined, key=lambda ordering: ordering.estimate_s)[:FINISHED]:
        if best.estimate_s >= search.best_s:
            search.scored += 1
            continue
        _simulate_ordered(search, best)
        counted = search.infeasible, search.simulated
        # Order searches leave out the queueing of transfers: a named order may be faster by its
        # simulation.
        for named in with_named_orders(
            search.problem, search.shaped, best.plan, capacity=search.inputs.capacity
        ):
            if named.estimate_s < search.best_s:
                _simulate_ordered(search, replace(named, bound_s=best.bound_s))
        search.infeasible, search.simulated = counted


def _simulate_ordered(search: JointSearchState, found_order: OrderedPlan) -> None:
    """Simulate a plan with its order, and keep it if it is the best."""
    if len(found_order.plan.chunks) == found_order.plan.ranks:
        search.simulate(path_score(search.problem, search.shaped, found_order.plan))
    else:
        search.simulate(
            ScoredPlan(
                plan=found_order.plan,
                costs=joint_step_costs(search.problem, search.shaped, found_order.plan),
                seconds=found_order.bound_s,
                need=(),
            )
        )
