"""Search of pipelines with any static order: a lower bound over all orders of every pipeline,
then an order for each of the most promising cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.lazy_dataclass import dataclass
from shardwright.search.joint.action_order import Ordered, named_orders, order_bound, ordered
from shardwright.search.joint.chunk_layer_counts import any_order_bounds, layer_counts
from shardwright.search.joint.joint_member import JointPlan, compose, plan_of_cut, plan_of_sizes
from shardwright.search.joint.label_arrays import is_alike
from shardwright.search.joint.pipeline_shapes import PipelineShape, ShapedSpace
from shardwright.search.joint.recompute_with_order import recomputed_in_order
from shardwright.search.joint.score_member import Scored, path_score
from shardwright.search.joint.search_progress import BOUNDED, Bounding, Footing, Search
from shardwright.search.joint.solve_pipeline import solve
from shardwright.search.joint.work_bounds import shape_bounds
from shardwright.search.parallel.engine_protocol import rounds

CHUNKS = (2, 4, 8)
"""Chunks a rank of the pipelines with several."""
SHAPES = 2
"""Shapes of a pipeline that are looked at."""
WEIGHED = 400
"""Cuts and shapes that are bounded with regard to memory, the least bounds first."""
SKETCHED = 20
"""Cuts that an order is sketched for, the least bounds first."""
SKETCH = 0.05
"""Share of an order search's changes that a sketch takes."""
REFINED = 4
"""Cuts that an order is searched for in full."""
MEMORY = 0.2
"""Share of an order search's changes that the search of order and recompute together takes."""
SKETCHES, SEARCHES = 8, 2
"""Cuts that orders are sketched for and searched for between two looks at the clock."""
FINISHED = 3
"""Found orders that are simulated."""
CLOSE = 1.01
"""Largest ratio of an estimate to the best known time that is worth a full search."""


def any_order_pipelines(
    shaped: ShapedSpace, layers: int, *, chunks_per_rank: Sequence[int] = CHUNKS
) -> tuple[PipelineShape, ...]:
    """Pipelines with any static order: those of `shaped` with one chunk a rank, and for each
    split alone several chunks a rank, in a loop or (two) on a V.
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
class Candidate:
    """A plan and a lower bound of its step in seconds over all orders."""

    bound_s: float
    plan: JointPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """A task of the order search: a plan, the share of the search effort, and whether recompute
    is chosen with the order.
    """

    plan: JointPlan
    share: float
    with_recompute: bool = False


def search_orders(
    search: Search, pipelines: tuple[PipelineShape, ...], *, share: float = 1.0
) -> bool:
    """Bound every pipeline with any order, then search orders for the cuts with the least bounds;
    True if the time limit did not pass.

    Bounds go into `search.lower` behind those of the pipelines with named orders.

    Args:
        share: of the cuts that orders are sketched and searched for.
    """
    footing = search.footing
    quick = (
        shape_bounds(
            footing.problem,
            replace(footing.shaped, pipelines=pipelines),
            footing.chain,
            footing.facts,
        )
        * footing.jitter
    )
    order = np.argsort(quick, kind="stable").tolist()
    waiting = _bounded(search, pipelines, [(float(quick[place]), place) for place in order])
    if search.best is not None and len(search.best.plan.chunks) == search.best.plan.ranks:
        waiting.append(Candidate(bound_s=0.0, plan=search.best.plan))
    waiting.sort(key=lambda candidate: candidate.bound_s)
    sketched, refined = (max(round(count * share), 1) for count in (SKETCHED, REFINED))
    sketches = _sketched(search, _promising(search, waiting)[:sketched])
    _refine(search, sketches[:refined])
    return not search.limit.passed()


def _bounded(
    search: Search,
    pipelines: tuple[PipelineShape, ...],
    order: Sequence[tuple[float, int]],
) -> list[Candidate]:
    """Plans with the least lower bounds of every pipeline whose bound is below the best plan.

    Args:
        order: pipelines with what their work alone takes, the least first.
    """
    # Every pipeline stays at its bound over all orders, as the orders found for a few of its cuts
    # prove nothing of the others; those behind the loop's end are not below the first of them.
    offset, waiting = len(search.shaped.pipelines), list[Candidate]()
    left = sum(bound_s < search.enough_s for bound_s, _ in order)
    for number, batch in enumerate(rounds(order, size=BOUNDED)):
        close = [place for bound_s, place in batch if bound_s < search.enough_s]
        if close and number and search.limit.passed():
            close = []
        tasks = [Bounding(pipeline=pipelines[place], enough_s=search.enough_s) for place in close]
        left -= len(close)
        for place, (lower, plans) in zip(
            close, search.engine.map(bounded, tasks, shared=search.footing, more=left), strict=True
        ):
            search.lower[offset + place] = min(lower, search.enough_s)
            waiting += plans
        search.say("bound cuts of any order", number * BOUNDED + len(close), len(order))
        if len(close) < len(batch):
            bound_s, place = batch[len(close)]
            search.lower[offset + place] = bound_s
            break
    return waiting


def bounded(footing: Footing, task: Bounding) -> tuple[float, list[Candidate]]:
    """Lower bound of a pipeline in seconds, and its plans that may be faster than the best."""
    return (_cuts if task.pipeline.chunks == 1 else _shapes)(footing, task.pipeline, task.enough_s)


def _cuts(
    footing: Footing, pipeline: PipelineShape, enough_s: float
) -> tuple[float, list[Candidate]]:
    """Lower bound of a pipeline with one chunk a rank, and the cuts that reach it or come near."""
    norm = footing.norm(pipeline)
    limit = enough_s / footing.jitter - norm
    solved = solve(
        footing.splits(pipeline), footing.pipe(pipeline), limit=limit, alike=is_alike(footing.chain)
    )
    lower = (solved.lower_s + norm) * footing.jitter
    return lower, [
        Candidate(bound_s=lower, plan=plan_of_cut(footing.shaped, pipeline, cut))
        for cut in solved.cuts
    ]


def _shapes(
    footing: Footing, pipeline: PipelineShape, enough_s: float
) -> tuple[float, list[Candidate]]:
    """Lower bound of a pipeline with several chunks a rank, and the shapes with the least
    bounds.
    """
    shaped = footing.shaped
    shapes = layer_counts(len(footing.chain), pipeline.ranks, pipeline.chunks)
    if not len(shapes):
        return float("inf"), []
    exact = footing.kept_splits(pipeline)
    owners = np.array(plan_of_sizes(shaped, pipeline, shapes[0]).owners)
    bounds = (
        any_order_bounds(exact, footing.pipe(pipeline), shapes, owners) + footing.norm(pipeline)
    ) * footing.jitter
    best = np.argsort(bounds, kind="stable")[:SHAPES]
    plans = [plan_of_sizes(shaped, pipeline, shapes[row]) for row in best]
    candidates = [
        Candidate(bound_s=float(bounds[row]), plan=plan)
        for row, plan in zip(best, plans, strict=True)
    ]
    return float(bounds.min()), [
        candidate for candidate in candidates if candidate.bound_s < enough_s
    ]


def _promising(search: Search, waiting: list[Candidate]) -> list[Candidate]:
    """Candidates whose lower bound under the memory limit is below the best plan, the least
    bound first.
    """
    bounded_places: list[tuple[float, int]] = []
    for number, batch in enumerate(rounds(waiting[:WEIGHED], size=BOUNDED)):
        if search.limit.passed():
            break
        bounds = search.engine.map(
            weighed, [candidate.plan for candidate in batch], shared=search.footing
        )
        bounded_places += [
            (bound, number * BOUNDED + place)
            for place, bound in enumerate(bounds)
            if bound < search.enough_s
        ]
    # Splits that differ only in where a step's gradients go have the same orders.
    distinct: dict[object, Candidate] = {}
    for bound, place in sorted(bounded_places):
        plan = waiting[place].plan
        distinct.setdefault(
            (round(bound, 9), plan.chunks, plan.folded, plan.microbatches), waiting[place]
        )
    return _in_turn(list(distinct.values()))


def weighed(footing: Footing, plan: JointPlan) -> float:
    """Lower bound in seconds of a plan over the orders that fit in memory."""
    return order_bound(footing.problem, footing.shaped, plan, capacity=footing.capacity)


def _in_turn(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates interleaved by kind: the first of each number of chunks a rank and direction,
    then the second of each, and so on.
    """
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


def order_found(footing: Footing, task: Ordering) -> Ordered | None:
    """The plan of a task with the best order found for it; None where no order fits in memory."""
    find = recomputed_in_order if task.with_recompute else ordered
    return find(
        footing.problem,
        footing.shaped,
        task.plan,
        capacity=footing.capacity,
        effort=task.share * footing.effort,
    )


def _sketched(search: Search, candidates: list[Candidate]) -> list[Ordered]:
    """Candidates with the orders of a short search, the least estimated step first."""
    sketches: list[Ordered] = []
    for number, batch in enumerate(rounds(candidates, size=SKETCHES)):
        if search.limit.passed():
            break
        tasks = [Ordering(plan=candidate.plan, share=SKETCH) for candidate in batch]
        orders = search.engine.map(order_found, tasks, shared=search.footing)
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


def _refine(search: Search, sketches: list[Ordered]) -> None:
    """Run full order searches for the best sketches, and simulate the best results."""
    refined: list[Ordered] = []
    for number, batch in enumerate(rounds(sketches, size=SEARCHES)):
        if search.limit.passed():
            refined.append(batch[0])
            break
        bare = [replace(sketch.plan, table=None) for sketch in batch]
        tasks = [
            *(Ordering(plan=plan, share=1.0) for plan in bare),
            *(Ordering(plan=plan, share=MEMORY, with_recompute=True) for plan in bare),
        ]
        orders = search.engine.map(order_found, tasks, shared=search.footing)
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
        _finish(search, best)
        counted = search.infeasible, search.simulated
        # What orders are found for leaves out transfers that queue: a named order may be faster by
        # its simulation.
        for named in named_orders(
            search.problem, search.shaped, best.plan, capacity=search.footing.capacity
        ):
            if named.estimate_s < search.best_s:
                _finish(search, replace(named, bound_s=best.bound_s))
        search.infeasible, search.simulated = counted


def _finish(search: Search, found_order: Ordered) -> None:
    """Simulate a plan with its order, and keep it if it is the best."""
    if len(found_order.plan.chunks) == found_order.plan.ranks:
        search.simulate(path_score(search.problem, search.shaped, found_order.plan))
    else:
        search.simulate(
            Scored(
                plan=found_order.plan,
                costs=compose(search.problem, search.shaped, found_order.plan),
                seconds=found_order.bound_s,
                need=(),
            )
        )
