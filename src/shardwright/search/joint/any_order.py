"""The pipelines whose order is found: bounds over all static orders by labels, then orders for the cuts that the labels like."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.bound_arrays import Facts
from shardwright.search.joint.arrays import is_alike, pipeline_of, splits_of
from shardwright.search.joint.chain import chain_of
from shardwright.search.joint.layer_counts import any_order_bounds, layer_counts
from shardwright.search.joint.member import JointPlan, compose, plan_of_cut, plan_of_sizes
from shardwright.search.joint.ordered import Ordered, named_orders, order_bound, ordered
from shardwright.search.joint.pipeline_shapes import PipelineShape, ShapedSpace
from shardwright.search.joint.quick_bounds import shape_bounds
from shardwright.search.joint.recomputed import recomputed_in_order
from shardwright.search.joint.score import Scored, path_score
from shardwright.search.joint.solve import solve
from shardwright.search.joint.state import Progress, Search

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
FINISHED = 3
"""Found orders that are simulated."""
CLOSE = 1.01
"""Largest ratio of an estimate to the best known time that is worth a full search."""


def any_order_pipelines(shaped: ShapedSpace, layers: int) -> tuple[PipelineShape, ...]:
    """The pipelines with one chunk a rank, their order open; of each split alone, more chunks, looped, and two on a V."""
    single = [pipeline for pipeline in shaped.pipelines if pipeline.chunks == 1]
    pipelines = [replace(pipeline, any_order=True) for pipeline in single]
    lone = dict.fromkeys((outer, pipeline.ranks, pipeline.microbatches, pipeline.zero) for pipeline in single for outer in pipeline.outers)
    for outer, ranks, microbatches, zero in lone:
        for chunks in CHUNKS:
            if chunks * ranks <= layers + 2 and ranks > 1:
                pipeline = PipelineShape(outers=(outer,), ranks=ranks, chunks=chunks, microbatches=microbatches, zero=zero, any_order=True)
                pipelines += [pipeline, replace(pipeline, folded=True)] if chunks == 2 else [pipeline]
    return tuple(pipelines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A plan with the seconds that no order of it ends before."""

    bound_s: float
    plan: JointPlan


def search_orders(search: Search, pipelines: tuple[PipelineShape, ...], facts: Facts, progress: Progress | None) -> bool:
    """Bound every pipeline, and try the cuts with the least bounds. Whether the deadline did not cut in.

    Bounds go into `search.lower` behind those of the pipelines with named orders.
    """
    shaped, first = search.shaped, len(search.shaped.pipelines)
    jitter = facts.jitter * (1 - 1e-9)
    quick = shape_bounds(search.problem, replace(shaped, pipelines=pipelines), chain_of(search.problem.model), facts) * jitter
    order = np.argsort(quick, kind="stable")
    waiting: list[_Candidate] = []
    for turn, place in enumerate(order.tolist()):
        if quick[place] >= search.enough_s or (turn % 16 == 15 and search.limit.passed()):
            search.lower[first + place] = float(quick[place])
            break
        bound = _cuts if pipelines[place].chunks == 1 else _shapes
        lower, found = bound(search, pipelines[place], facts, jitter)
        search.lower[first + place] = min(lower, search.enough_s)
        waiting += found
        if progress is not None and turn % 64 == 0:
            progress(search.stands("bound cuts of any order"), turn, len(order))
    if search.best is not None and len(search.best.plan.chunks) == search.best.plan.ranks:
        waiting.append(_Candidate(bound_s=0.0, plan=search.best.plan))
    waiting.sort(key=lambda one: one.bound_s)
    _refine(search, _sketched(search, _promising(search, waiting), progress), progress)
    return not search.limit.passed()


def _cuts(search: Search, pipeline: PipelineShape, facts: Facts, jitter: float) -> tuple[float, list[_Candidate]]:
    """The bound of a pipeline with one chunk a rank, and the cuts that its labels like."""
    problem, shaped, chain = search.problem, search.shaped, chain_of(search.problem.model)
    splits, pipe = splits_of(problem, shaped, chain, pipeline, facts), pipeline_of(problem, pipeline, facts)
    norm = float(min(shaped.costs.norm[shaped.prepared.mesh_row[list(pipeline.outers)]]))
    solved = solve(splits, pipe, limit=search.enough_s / jitter - norm, alike=is_alike(chain))
    lower = (solved.lower_s + norm) * jitter
    return lower, [_Candidate(bound_s=lower, plan=plan_of_cut(shaped, pipeline, cut)) for cut in solved.cuts]


def _shapes(search: Search, pipeline: PipelineShape, facts: Facts, jitter: float) -> tuple[float, list[_Candidate]]:
    """The bound of a pipeline with several chunks a rank, and the shapes with the least ones."""
    problem, shaped, chain = search.problem, search.shaped, chain_of(search.problem.model)
    shapes = layer_counts(len(chain), pipeline.ranks, pipeline.chunks)
    if not len(shapes):
        return float("inf"), []
    key = pipeline.outers[0], pipeline.zero
    if key not in search.exact:
        search.exact[key] = splits_of(problem, shaped, chain, replace(pipeline, chunks=1), facts)
    exact = search.exact[key]
    owners = np.array(plan_of_sizes(shaped, pipeline, tuple(shapes[0].tolist()), (0,) * shapes.shape[1]).owners)
    norm = float(shaped.costs.norm[shaped.prepared.mesh_row[pipeline.outers[0]]])
    bounds = (any_order_bounds(exact, pipeline_of(problem, pipeline, facts), shapes, owners) + norm) * jitter
    best = np.argsort(bounds, kind="stable")[:SHAPES]
    plans = [plan_of_sizes(shaped, pipeline, tuple(shapes[row].tolist()), (0,) * shapes.shape[1]) for row in best]
    found = [_Candidate(bound_s=float(bounds[row]), plan=plan) for row, plan in zip(best, plans, strict=True)]
    return float(bounds.min()), [one for one in found if one.bound_s < search.enough_s]


def _promising(search: Search, waiting: list[_Candidate]) -> list[_Candidate]:
    """Those that fit and whose bound with regard to memory is below the best, by that bound."""
    found: list[tuple[float, int]] = []
    for place, one in enumerate(waiting[:WEIGHED]):
        if search.limit.passed():
            break
        bound = order_bound(search.problem, search.shaped, one.plan, capacity=search.capacity)
        if bound < search.enough_s:
            found.append((bound, place))
    # Splits that differ only in where a step's gradients go have the same orders.
    kept: dict[object, _Candidate] = {}
    for bound, place in sorted(found):
        plan = waiting[place].plan
        kept.setdefault((round(bound, 9), plan.chunks, plan.folded, plan.microbatches), waiting[place])
    return _in_turn(list(kept.values()))


def _in_turn(candidates: list[_Candidate]) -> list[_Candidate]:
    """The first of each number of chunks a rank and way around the ranks, then the second of each, and so on."""
    turns: Counter[tuple[int, bool]] = Counter()
    keys: list[int] = []
    for one in candidates:
        kind = one.plan.chunks_per_rank, one.plan.folded
        keys.append(turns[kind])
        turns[kind] += 1
    return [one for _, one in sorted(zip(keys, candidates, strict=True), key=lambda pair: pair[0])]


def _sketched(search: Search, candidates: list[_Candidate], progress: Progress | None) -> list[Ordered]:
    """Sketches of the first plans, by what they are estimated to take."""
    found: list[Ordered] = []
    for turn, candidate in enumerate(candidates[:SKETCHED]):
        if search.limit.passed():
            break
        one = ordered(search.problem, search.shaped, candidate.plan, capacity=search.capacity, effort=SKETCH * search.effort)
        if one is not None and one.estimate_s < search.best_s * CLOSE:
            found.append(replace(one, bound_s=candidate.bound_s))
        if progress is not None:
            progress(search.stands("sketch orders", lower_s=search.lower_s), turn, min(len(candidates), SKETCHED))
    return sorted(found, key=lambda one: one.estimate_s)


def _refine(search: Search, sketches: list[Ordered], progress: Progress | None) -> None:
    """Full searches for the best sketches; the best of those are simulated."""
    found: list[Ordered] = []
    for turn, sketch in enumerate(sketches[:REFINED]):
        if search.limit.passed():
            found.append(sketch)
            break
        asked = search.problem, search.shaped, replace(sketch.plan, table=None)
        one = ordered(*asked, capacity=search.capacity, effort=search.effort)
        both = recomputed_in_order(*asked, capacity=search.capacity, effort=MEMORY * search.effort)
        best = min((other for other in (sketch, one, both) if other is not None), key=lambda other: other.estimate_s)
        found.append(replace(best, bound_s=sketch.bound_s))
        if progress is not None:
            progress(search.stands("search orders", lower_s=search.lower_s), turn, min(len(sketches), REFINED))
    for one in sorted(found, key=lambda one: one.estimate_s)[:FINISHED]:
        if one.estimate_s >= search.best_s:
            search.scored += 1
            continue
        _finish(search, one)
        counted = search.infeasible, search.simulated
        # What orders are found for leaves out transfers that queue: a named order may be faster by its simulation.
        for other in named_orders(search.problem, search.shaped, one.plan, capacity=search.capacity):
            if other.estimate_s < search.best_s:
                _finish(search, replace(other, bound_s=one.bound_s))
        search.infeasible, search.simulated = counted


def _finish(search: Search, one: Ordered) -> None:
    """Simulate a plan with its order."""
    if len(one.plan.chunks) == one.plan.ranks:
        search.simulate(path_score(search.problem, search.shaped, one.plan))
    else:
        search.simulate(Scored(plan=one.plan, costs=compose(search.problem, search.shaped, one.plan), seconds=one.bound_s, need=()))
