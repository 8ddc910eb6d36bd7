"""The joint search: cut, splits, memory choices, microbatches and order together, best first over pipelines, certified."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from shardwright.cost.bound_arrays import Facts
from shardwright.cost.critical_path import order_table
from shardwright.errors import InfeasibleError
from shardwright.program.problem import Problem
from shardwright.search.answer import Answer
from shardwright.search.certificate import assert_sound, claim
from shardwright.search.grid.find import find, problem_text
from shardwright.search.grid.prepare import facts_of
from shardwright.search.grid.space import Space
from shardwright.search.joint.any_order import any_order_pipelines, search_orders
from shardwright.search.joint.arrays import is_alike, pipeline_of, splits_of
from shardwright.search.joint.chain import chain_of
from shardwright.search.joint.label_program import Pipeline, Splits
from shardwright.search.joint.layer_counts import layer_count_bounds, layer_count_path, layer_counts, least_redone, shape_times
from shardwright.search.joint.member import plan_of_cut, plan_of_sizes, split_grid
from shardwright.search.joint.pipeline_shapes import PipelineShape, joint_space, shaped_space
from shardwright.search.joint.quick_bounds import shape_bounds
from shardwright.search.joint.score import Scored
from shardwright.search.joint.solve import Solved, load_label_kernels, solve
from shardwright.search.joint.state import OPEN_LIMIT, Progress, Search
from shardwright.search.limit import limit_of, out_of_time
from shardwright.search.request import SEARCH_MEMORY
from shardwright.search.simulation import Simulation
from shardwright.search.universal import universal_bound
from shardwright.strategy.grid.rules import GridFacts

NAMED_ORDERS, FOUND_ORDERS = "named", "found"
FIRST_LOOKS = 48
"""Pipelines that are looked at before any is bounded by labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCertificate:
    """Every member of the joint space, accounted for: enumerated = infeasible + bounded + scored + simulated, of members (plans).

    Args:
        pipelines: choices that all ranks share; a member of one with any order has its best one, orders are not counted. infeasible: no
            option of a pipeline's ranks fits in memory, or the exact peak does not. bounded: a lower bound of their time is not below the
            best (or they are in a pipeline whose bound is the certificate's). scored: their longest path is not below the best.
            simulated: in full.
        grids: members of the grid space, which is part of this one and certified on its own (`grid_lower_s`).
        best_s, lower_bound_s, gap: as in `search.certificate`. optimal: nothing in the space is faster. complete: no time limit cut in.
        tolerance: as it was asked for. stopped_at: as in `search.certificate`.
    """

    space: str
    digest: str
    pipelines: int
    enumerated: int
    infeasible: int
    bounded: int
    scored: int
    simulated: int
    grids: int
    grid_lower_s: float
    best_s: float
    lower_bound_s: float
    gap: float
    complete: bool
    universal_gap: float
    tolerance: float = 0.0
    stopped_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswer:
    """Args: best: None where a grid stays the best plan. grid: the best of the grid space, None if none of it fits. simulation: of the
    best plan, as a plan file holds it. waited: the limit cut in before there was a plan (`search.limit.Limit`).
    """

    best: Scored | None
    grid: Answer | None
    step_time_s: float
    certificate: JointCertificate
    search_time_s: float
    simulation: Simulation | None = None
    waited: bool = False

    def __str__(self) -> str:
        """What was asked, what was found, and whether it is proven best, in a few lines."""
        c = self.certificate
        return f"{self.simulation or ''}\n{claim(optimal=c.gap == 0, lower_bound_s=c.lower_bound_s)}".strip()


def find_joint(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    orders: str = NAMED_ORDERS,
    effort: float = 1.0,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    stop_at: tuple[int, int] | None = None,
    memory: int = SEARCH_MEMORY,
    progress: Progress | None = None,
) -> JointAnswer:
    """The best plan of the joint space over `space`, certified; the grid space is searched first and is part of it.

    Args:
        capacity: bytes of a device. orders: "named" for 1F1B and interleaved 1F1B, "found" for any static order of one chunk a rank too.
        effort: of the order searches (`search.orders.find.find_order`).
        tolerance: gap that is good enough; 0 = look on until nothing that the bounds leave is unseen.
        time_limit_s: past it the best so far stands with its proven gap. stop_at: of the search of the grid space, and of this one; see
            `search.limit.limit_of`. memory: bytes for the members of the grid space.

    Raises:
        OutOfTimeError: the limit cut in, and there is no plan yet. InfeasibleError: nothing fits.
    """
    load_label_kernels()
    begun, (grid_stop, stop) = time.monotonic(), stop_at or (None, None)
    limit = limit_of(time_limit_s, stop_at=stop)
    grid, refusal = _best_grid(problem, space, facts, capacity, time_limit_s / 2, grid_stop, memory, progress)
    waited = grid is not None and grid.waited and not limit.left_s
    # Devices that the best grid leaves idle are idle in every pipeline.
    devices = grid.grid.devices if grid else space.devices
    joint = joint_space(space, devices=devices, any_order=orders == FOUND_ORDERS)
    shaped = shaped_space(problem, joint, facts)
    best_s = grid.certificate.best_s if grid else OPEN_LIMIT
    lower, sizes, search = float("inf"), [], None
    complete = grid is None or grid.certificate.optimal
    if shaped is not None:
        search = Search(problem=problem, shaped=shaped, capacity=capacity, best_s=best_s, tolerance=tolerance, effort=effort)
        search.limit = limit
        kernel_facts = facts_of(problem, devices=devices, capacity=capacity)
        complete &= _search(search, kernel_facts, progress)
        more = any_order_pipelines(shaped, facts.layers) if joint.any_order else ()
        if more:
            complete &= search_orders(search, more, kernel_facts, progress)
        lower = search.lower_s
        sizes = [_num_members(f, facts.layers) for f in (*shaped.pipelines, *more)]
    best = search.best if search else None
    if best is None and grid is None:
        assert refusal is not None
        raise out_of_time() if limit.stopped_at else refusal
    step = search.best_s if search else best_s
    grid_lower = grid.certificate.lower_bound_s if grid else float("inf")
    lower = min(lower, grid_lower, step)
    done = (search.infeasible, search.scored, search.simulated) if search else (0, 0, 0)
    universal = 1.0 - universal_bound(problem, space.devices) / step
    assert_sound(best_s=step, lower_bound_s=lower, universal_gap=universal)
    certificate = JointCertificate(
        space=joint.text(),
        digest=joint.digest(problem_text(problem)),
        pipelines=len(sizes),
        enumerated=sum(sizes),
        infeasible=done[0],
        bounded=sum(sizes) - sum(done),
        scored=done[1],
        simulated=done[2],
        grids=grid.certificate.enumerated if grid else 0,
        grid_lower_s=grid_lower,
        best_s=step,
        lower_bound_s=lower,
        gap=max(step - lower, 0.0) / step,
        complete=complete,
        tolerance=tolerance,
        stopped_at=limit.stopped_at,
        universal_gap=universal,
    )
    spent = time.monotonic() - begun
    return JointAnswer(best=best, grid=grid, step_time_s=step, certificate=certificate, search_time_s=spent, waited=waited)


def _best_grid(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    capacity: int,
    limit: float,
    stop_at: int | None,
    memory: int,
    progress: Progress | None,
) -> tuple[Answer | None, InfeasibleError | None]:
    try:
        found = find(problem, space, facts, capacity=capacity, top=1, time_limit_s=limit, stop_at=stop_at, memory=memory, progress=progress)
        return found, None
    except InfeasibleError as error:
        return None, error


def _num_members(pipeline: PipelineShape, layers: int) -> int:
    """Members of a pipeline: cuts times splits of each rank times whether what is not recomputed in full is so selectively.

    How many layers a rank recomputes in full is not counted: the fewest that fit stand for the others, which are slower.
    """
    if pipeline.chunks == 1:
        return comb(layers - 1, pipeline.ranks - 1) * int((2 * len(pipeline.outers)) ** pipeline.ranks)
    return len(layer_counts(layers, pipeline.ranks, pipeline.chunks))


def _search(search: Search, kernel_facts: Facts, progress: Progress | None) -> bool:
    """Labels of all pipelines that work alone does not rule out; then members in order of their pipeline's bound. Whether all was done."""
    problem, shaped = search.problem, search.shaped
    chain = chain_of(problem.model)
    alike, jitter = is_alike(chain), kernel_facts.jitter * (1 - 1e-9)
    quick = shape_bounds(problem, shaped, chain, kernel_facts) * jitter
    order = np.argsort(quick, kind="stable")
    _begin(search, order[:FIRST_LOOKS].tolist(), kernel_facts)
    waiting: list[tuple[float, int, Solved]] = []
    for turn, place in enumerate(order.tolist()):
        if quick[place] >= search.enough_s:
            search.lower[-2] = float(quick[place])
            break
        if turn % 64 == 0 and search.limit.passed():
            search.lower[-1] = float(quick[place])
            break
        pipeline = shaped.pipelines[place]
        if pipeline.chunks > 1 and pipeline.ranks * pipeline.chunks > len(chain) + 2:
            continue
        splits, pipe = splits_of(problem, shaped, chain, pipeline, kernel_facts), pipeline_of(problem, pipeline, kernel_facts)
        norm = float(min(shaped.costs.norm[shaped.prepared.mesh_row[list(pipeline.outers)]]))
        solved = solve(splits, pipe, limit=search.enough_s / jitter - norm, alike=alike or pipeline.chunks > 1)
        if not solved.cuts:
            # Nothing fits, or nothing ends before what is good enough.
            search.lower[-3] = search.enough_s
        else:
            waiting.append(((solved.lower_s + norm) * jitter, place, solved))
        if progress is not None and turn % 256 == 0:
            progress(search.stands("bound cuts"), turn, len(order))
    if progress is not None:
        progress(search.stands("bound cuts"), len(order), len(order))
    waiting.sort(key=lambda entry: entry[0])
    for turn, (bound, place, solved) in enumerate(waiting):
        search.lower[place] = bound
        if bound >= search.enough_s:
            break
        if search.limit.passed():
            return False
        if progress is not None:
            progress(search.stands("score cuts", lower_s=bound), turn, len(waiting))
        pipeline = shaped.pipelines[place]
        if pipeline.chunks == 1:
            for cut in solved.cuts:
                search.attempt(plan_of_cut(shaped, pipeline, cut))
        else:
            pipe = pipeline_of(problem, pipeline, kernel_facts)
            exact = splits_of(problem, shaped, chain, replace(pipeline, chunks=1), kernel_facts)
            norm = float(shaped.costs.norm[shaped.prepared.mesh_row[pipeline.outers[0]]])
            search.lower[place] = _spread(search, pipeline, pipe, exact, norm, jitter, bound)
    return -1 not in search.lower


def _begin(search: Search, places: list[int], facts: Facts) -> None:
    """One shape of each of a few promising pipelines, for a good plan before all are bounded. Counted when they come up again."""
    counted = (search.infeasible, search.scored, search.simulated)
    chain = chain_of(search.problem.model)
    for place in places:
        if search.limit.passed():
            break
        pipeline = search.shaped.pipelines[place]
        if pipeline.chunks == 1:
            continue
        shapes = layer_counts(len(chain), pipeline.ranks, pipeline.chunks)
        if len(shapes):
            pipe = pipeline_of(search.problem, pipeline, facts)
            exact = splits_of(search.problem, search.shaped, chain, replace(pipeline, chunks=1), facts)
            shape = shapes[int(layer_count_bounds(exact, pipe, shapes).argmin())]
            redone = least_redone(exact, pipe, shape)
            if redone is not None:
                search.attempt(plan_of_sizes(search.shaped, pipeline, tuple(shape.tolist()), tuple(redone.tolist())))
    search.infeasible, search.scored, search.simulated = counted


def _spread(search: Search, pipeline: PipelineShape, pipe: Pipeline, exact: Splits, norm: float, jitter: float, bound: float) -> float:
    """Try every shape of a pipeline with several chunks a rank in order of its bound; a lower bound of what is not simulated."""
    shapes = layer_counts(len(chain_of(search.problem.model)), pipeline.ranks, pipeline.chunks)
    bounds = (layer_count_bounds(exact, pipe, shapes) + norm) * jitter
    grid = split_grid(search.shaped, pipeline.outers[0], chunks=pipeline.chunks, zero=pipeline.zero)
    table = order_table(grid, microbatches=pipeline.microbatches)
    order = np.argsort(bounds, kind="stable")
    some = order[bounds[order] < search.enough_s]
    least = float(bounds[order[len(some)]]) if len(some) < len(order) else float("inf")
    times = shape_times(exact, pipe, shapes[some], pieces=search.problem.runtime.overlap_grad_reduce)
    paths: list[tuple[float, int, tuple[int, ...]]] = []
    for place, row in enumerate(some.tolist()):
        if place % 64 == 63 and search.limit.passed():
            least = min(least, float(bounds[row]))
            break
        redone = np.zeros_like(shapes[row])
        path = (layer_count_path(times, pipe, table, place) + norm) * jitter * (1 - 1e-7)
        if path < search.enough_s:
            needed = least_redone(exact, pipe, shapes[row])
            if needed is None:
                search.infeasible += 1
                continue
            if needed.any():
                redone, path = needed, (layer_count_path(times, pipe, table, place, needed) + norm) * jitter * (1 - 1e-7)
        paths.append((path, row, tuple(redone.tolist())))
    for path, row, first in sorted(paths):
        if path >= search.enough_s:
            search.scored += 1
            least = min(least, path)
        else:
            least = min(least, search.attempt(plan_of_sizes(search.shaped, pipeline, tuple(shapes[row].tolist()), first)))
    return max(bound, least)
