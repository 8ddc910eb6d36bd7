"""Joint search: layer cut, splits, memory choices, microbatches and order together, certified.

Pipelines are searched best first.
"""

from __future__ import annotations

import time
from dataclasses import field
from math import comb, inf

from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import facts_of
from shardwright.search.grid.find_best_grid import find, problem_text
from shardwright.search.grid.members.grid_search_space import Space, supported_option_parts
from shardwright.search.grid.search_by_mesh import fastest_first
from shardwright.search.joint.chunk_layer_counts_with_time_bounds import layer_counts
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_search_state import OPEN_LIMIT, JointInputs, JointSearchState
from shardwright.search.joint.joint_space import (
    JointSpace,
    PipelineShape,
    joint_space,
    shaped_space,
)
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import load_label_kernels
from shardwright.search.joint.score_joint_plan import ScoredPlan
from shardwright.search.joint.search_1f1b_pipelines import search_named_orders
from shardwright.search.joint.search_any_order import CHUNKS, any_order_pipelines, search_any_orders
from shardwright.search.optimality_certificate import Certificate, JointPart, assert_sound
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, Stops, limit_of, out_of_time
from shardwright.search.universal_time_bound import universal_bound
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan

NAMED_ORDERS, FOUND_ORDERS = "named", "found"
LATER = 0.25
"""Share of the order searches for each part of the options after the first part.

The first part has the options under which the best grid is the fastest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDetail:
    """The best plan of a joint search in the terms of the joint space.

    Args:
        best: the plan with the costs of its stages; None where a grid is the best plan.
        grid: the answer of the search of the grid space, None if no grid fits.
    """

    best: ScoredPlan | None
    grid: Answer | None


@dataclass(slots=True)
class _JointResults:
    """Results of the pipelines of all parts of the options so far.

    Args:
        best_s: seconds of the best plan, grids included.
        complete: no time limit was reached.
        lower_s: lower bound in seconds on every member of a pipeline.
        infeasible, scored, simulated: numbers of members; see `_build_certificate`.
        sizes: number of members of each pipeline.
    """

    best_s: float
    complete: bool
    best: ScoredPlan | None = None
    lower_s: float = inf
    infeasible: int = 0
    scored: int = 0
    simulated: int = 0
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _JointRequest:
    """Inputs of one joint search, shared by all its parts; see `find_joint`."""

    problem: Problem
    facts: GridFacts
    capacity: int
    joint: JointSpace
    effort: float
    tolerance: float
    limit: Limit
    engine: Engine
    progress: Progress | None


def find_joint(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    orders: str = NAMED_ORDERS,
    effort: float = 1.0,
    tolerance: float = 0.0,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[JointDetail]:
    """Find the fastest grid of `space` or plan of its joint space, certified; error if none.

    The grid space is searched first and is part of the joint space.

    Args:
        capacity: bytes of a device.
        orders: "named" for 1F1B and interleaved 1F1B; "found" to also search any static order of
            one chunk a rank.
        effort: effort of the order searches (`search.orders.find_order.find_order`).
        tolerance: relative gap at which the search stops; 0 = search until the bounds leave
            nothing.
        time_limit_s: seconds after which the best plan so far and its proven gap are returned.
        stops: stops of an earlier search, to repeat it.
        memory: bytes for the members of the grid space.
        engine: runs the tasks; None = one task after another. The answer is the same.

    Raises:
        OutOfTimeError: the limit was reached, and there is no plan yet. InfeasibleError: no plan
            fits.
    """
    load_label_kernels()
    begun = time.monotonic()
    limit = limit_of(time_limit_s, stop_at=stops.search if stops else None)
    grid: Answer | None = None
    refusal: InfeasibleError | None = None
    try:
        grid = find(
            problem,
            space,
            facts,
            capacity=capacity,
            top=1,
            time_limit_s=time_limit_s / 2,
            stop_at=stops.grids[0] if stops else None,
            memory=memory,
            progress=progress,
        )
    except InfeasibleError as error:
        refusal = error
    waited = grid is not None and grid.waited and not limit.left_s
    # Devices that the best grid leaves idle are idle in every pipeline.
    devices = grid.grid.devices if grid else space.devices
    joint = joint_space(space, devices=devices, any_order=orders == FOUND_ORDERS)
    question = _JointRequest(
        problem=problem,
        facts=facts,
        capacity=capacity,
        joint=joint,
        effort=effort,
        tolerance=tolerance,
        limit=limit,
        engine=engine or Serial(),
        progress=progress,
    )
    results = _search_pipelines(question, grid)
    if results.best is None and grid is None:
        assert refusal is not None
        raise out_of_time() if limit.stopped_at else refusal
    return GeneralAnswer(
        strategy=_strategy(problem, results.best, grid),
        certificate=_build_certificate(question, grid, results, devices=space.devices),
        detail=JointDetail(best=results.best, grid=grid),
        search_time_s=time.monotonic() - begun,
        waited=waited,
    )


def _strategy(problem: Problem, best: ScoredPlan | None, grid: Answer | None) -> Grid | Plan:
    """The best joint plan as a general plan, or the best grid if no joint plan is faster."""
    if best is not None:
        return general_plan(problem, best.plan)
    assert grid is not None
    return grid.grid


def _search_pipelines(question: _JointRequest, grid: Answer | None) -> _JointResults:
    """Search the pipelines under each combination of options, ascending by the best grid's step."""
    problem, joint = question.problem, question.joint
    results = _JointResults(
        best_s=grid.certificate.best_s if grid else OPEN_LIMIT,
        complete=grid is None or grid.certificate.optimal,
    )
    parts: list[Space] = (
        list(supported_option_parts(problem, joint.base)) if joint.base.of("pp") else []
    )
    if grid is not None:
        parts = fastest_first(problem, parts, grid.grid)
    for part in parts:
        under_options = under(problem, in_vocabulary_order((*part.chosen, *part.modules[0])))
        with_stages, first = (
            joint.with_options(part, zero_stages=under_options.runtime.zero_stages),
            parts[0],
        )
        shaped = shaped_space(
            under_options,
            with_stages,
            question.facts,
            searched_first=None if part is first else first,
        )
        if shaped is not None:
            inputs = JointInputs(
                problem=under_options,
                shaped=shaped,
                facts=facts_of(
                    under_options, devices=joint.base.devices, capacity=question.capacity
                ),
                capacity=question.capacity,
                tolerance=question.tolerance,
                effort=question.effort,
            )
            _search_part(question, inputs, results, share=1.0 if part is first else LATER)
    return results


def _search_part(
    question: _JointRequest, inputs: JointInputs, results: _JointResults, *, share: float
) -> None:
    """Search the pipelines under one value of each option, and add to the results in place.

    Args:
        share: share of the order searches.
    """
    joint, shaped, layers, limit = (
        question.joint,
        inputs.shaped,
        question.facts.layers,
        question.limit,
    )
    chunks = [count for count in CHUNKS if count in joint.grids.of("vpp")]
    any_order = (
        any_order_pipelines(shaped, layers, chunks_per_rank=chunks) if joint.any_order else ()
    )
    results.sizes += [
        _num_members(pipeline, layers) for pipeline in (*shaped.pipelines, *any_order)
    ]
    if limit.stopped_at and share < 1.0:
        # These pipelines are not searched: the bound that holds for every plan is theirs.
        lower_s = universal_bound(inputs.problem, joint.base.devices)
        results.complete, results.lower_s = False, min(results.lower_s, lower_s)
        return
    search = JointSearchState(
        inputs=inputs,
        best_s=results.best_s,
        limit=limit,
        engine=question.engine,
        progress=question.progress,
    )
    results.complete &= search_named_orders(search)
    if any_order:
        results.complete &= search_any_orders(search, any_order, share=share)
    results.lower_s = min(results.lower_s, search.lower_s)
    results.infeasible += search.infeasible
    results.scored += search.scored
    results.simulated += search.simulated
    if search.best is not None:
        results.best, results.best_s = search.best, search.best_s


def _build_certificate(
    question: _JointRequest, grid: Answer | None, results: _JointResults, *, devices: int
) -> Certificate:
    """The certificate of a joint search: member counts by outcome, and a lower bound on all.

    Infeasible: no option of a pipeline's ranks fits in memory, or the exact peak does not.
    bounded_b1: their longest path is not below the best. bounded_b0: the others that were not
    simulated, as their own bound or that of their pipeline is not below the best, or is the
    certificate's. A member with any order has its best one: orders are not counted.

    Args:
        devices: number of devices of the cluster.
    """
    problem, joint, step = question.problem, question.joint, results.best_s
    grid_lower = grid.certificate.lower_bound_s if grid else inf
    # A plan of the space is a grid or a member of some pipeline.
    lower = min(results.lower_s, grid_lower, step)
    universal = 1.0 - universal_bound(problem, devices) / step
    assert_sound(best_s=step, lower_bound_s=lower, universal_gap=universal)
    members = sum(results.sizes)
    return Certificate(
        space=joint.text(),
        digest=joint.digest(problem_text(problem)),
        enumerated=members,
        illegal=0,
        duplicates=0,
        infeasible=results.infeasible,
        bounded_b0=members - results.infeasible - results.scored - results.simulated,
        bounded_b1=results.scored,
        simulated=results.simulated,
        best_s=step,
        lower_bound_s=lower,
        gap=max(step - lower, 0.0) / step,
        optimal=lower >= step,
        universal_gap=universal,
        stopped_at=question.limit.stopped_at,
        joint=JointPart(
            pipelines=len(results.sizes),
            complete=results.complete,
            tolerance=question.tolerance,
            grids=grid.certificate.strategies if grid else 0,
            grid_lower_s=grid_lower if grid else None,
            grid_stopped_at=grid.certificate.stopped_at if grid else 0,
            fixed=joint.fixed,
        ),
    )


def _num_members(pipeline: PipelineShape, layers: int) -> int:
    """Number of members of a pipeline: layer cuts, splits and selective recomputation.

    The number of layers that a rank recomputes in full is not counted: the fewest that fit stand
    for the others, which are slower.
    """
    if pipeline.chunks == 1:
        return comb(layers - 1, pipeline.ranks - 1) * int(
            (2 * len(pipeline.outers)) ** pipeline.ranks
        )
    return len(layer_counts(layers, pipeline.ranks, pipeline.chunks))
