"""Find the best strategy of a grid space: bound all members, refine the best, certify."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.grid.best_first_search import Simulated
from shardwright.search.grid.bounds.members_with_time_and_memory import ExpandedMembers
from shardwright.search.grid.bounds.mesh_bounds_with_relaxed_options import NO_ROOM
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.build_error_where_nothing_fits import nothing_fits
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.search.grid.search_overlapped_and_two_lane_schedules import PairedSearch
from shardwright.search.optimality_certificate import Certificate, assert_sound
from shardwright.search.search_answer import Alternative, Answer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, limit_of, out_of_time
from shardwright.search.universal_time_bound import universal_bound
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.step_breakdown import breakdown
from shardwright.strategy.grid.grid_rules import GridFacts

CHANGES: Final = 5
"""Most parts of the breakdown that an alternative plan lists."""


def find(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    top: int,
    time_limit_s: float = float("inf"),
    most_looks: int = 0,
    stop_at: int | None = None,
    memory: int = SEARCH_MEMORY,
    hints: bool = True,
    progress: Progress | None = None,
) -> Answer:
    """Find the fastest strategy of `space` that fits in memory, certified; error if none fits."""
    return search_and_answer(
        problem,
        space,
        facts,
        capacity=capacity,
        top=top,
        limit=limit_of(time_limit_s, most_looks=most_looks, stop_at=stop_at),
        memory=memory,
        hints=hints,
        progress=progress,
    )[0]


def search_and_answer(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: int,
    top: int,
    limit: Limit,
    memory: int = SEARCH_MEMORY,
    hints: bool = True,
    progress: Progress | None = None,
) -> tuple[Answer, Searched]:
    """Search `space`; return the certified answer and the search result behind it.

    Args:
        limit: search limit; past it the best member so far is kept with its proven gap
            (`search.search_time_limit.limit_of`).
        memory: bytes that the search may use for members.
        hints: see `build_error_where_nothing_fits.nothing_fits`; False where the caller catches
            the error.

    Raises:
        OutOfTimeError: the limit passed before any plan was found.
        InfeasibleError: no member fits; names the tightest constraint, the missing amount, and
            changes that would fit.
    """
    if progress is not None:
        progress("load compiled kernels (the first run compiles them)", 0, 1)
    load_kernels()
    begun = time.monotonic()
    searched = search(
        problem,
        space,
        facts,
        capacity=capacity,
        top=top,
        limit=limit,
        memory=memory,
        progress=progress,
    )
    answer = answer_of(
        problem,
        space,
        facts,
        searched,
        capacity=capacity,
        limit=limit,
        hints=hints,
        progress=progress,
    )
    return replace(answer, search_time_s=time.monotonic() - begun), searched


def answer_of(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    searched: Searched,
    *,
    capacity: int,
    limit: Limit,
    hints: bool = True,
    progress: Progress | None = None,
) -> Answer:
    """Build the certified answer of a finished search, with search time 0; error if none fits.

    Raises:
        OutOfTimeError: the limit passed before all members were bounded, and no plan was found.
        InfeasibleError: no member fits.
    """
    ranked = searched.outcome.ranked
    if not ranked and any(np.isfinite(seconds).any() for _, seconds, _ in searched.left):
        raise out_of_time()
    if not ranked:
        raise nothing_fits(
            problem,
            space,
            facts,
            tuple(searched.expanded),
            capacity=capacity,
            hints=hints,
            progress=progress,
        )
    prediction = predict(problem, ranked[0].grid, ranked[0].result)
    return Answer(
        grid=ranked[0].grid,
        prediction=prediction,
        certificate=replace(certify(problem, space, searched), stopped_at=limit.stopped_at),
        alternatives=tuple(_alternative(prediction, other) for other in ranked[1:]),
        search_time_s=0.0,
        waited=limit.waited,
    )


@dataclass(slots=True)
class _UnexpandedCounts:
    """Numbers of members by fate in the meshes that the search never expanded into members.

    Args:
        enumerated: combinations of axis values.
        illegal, duplicates: combinations that break a rule, or repeat a strategy.
        infeasible: distinct members of meshes in which no member fits in memory.
        bounded: the other distinct members, ruled out by the bound of their mesh.
    """

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0
    infeasible: int = 0
    bounded: int = 0


def _unexpanded_counts(searched: Searched) -> _UnexpandedCounts:
    """Count members of unexpanded meshes by fate; those of repeated meshes are duplicates."""
    counts = _UnexpandedCounts()
    for meshes, seconds, _ in searched.left:
        legal, distinct = int(meshes.columns["legal"].sum()), meshes.columns["distinct"]
        infeasible = int(distinct[seconds == NO_ROOM].sum())
        counts.enumerated += meshes.enumerated
        counts.illegal += meshes.enumerated - legal
        counts.duplicates += legal - int(distinct.sum())
        counts.infeasible += infeasible
        counts.bounded += int(distinct.sum()) - infeasible
    for meshes in searched.repeated:
        legal = int(meshes.columns["legal"].sum())
        counts.enumerated += meshes.enumerated
        counts.illegal += meshes.enumerated - legal
        counts.duplicates += legal
    return counts


def certify(problem: Problem, space: Space, searched: Searched) -> Certificate:
    """Build the certificate of a search of `space` that ranked at least one member."""
    expanded, outcome, paired, unexpanded = (
        searched.expanded,
        searched.outcome,
        searched.paired,
        _unexpanded_counts(searched),
    )
    results: tuple[ExpandedMembers | PairedSearch | _UnexpandedCounts, ...] = (
        *expanded,
        *paired,
        unexpanded,
    )
    unfit = sum(result.infeasible for result in paired) + unexpanded.infeasible
    best = outcome.ranked[0].step_time_s
    infeasible = sum(result.infeasible for result in expanded)
    refined = outcome.paths + outcome.too_large
    lower, universal = (
        min(outcome.lower_bound_s, best),
        1.0 - universal_bound(problem, space.devices) / best,
    )
    assert_sound(best_s=best, lower_bound_s=lower, universal_gap=universal)
    return Certificate(
        space=space.text(),
        digest=space.digest(problem_text(problem)),
        enumerated=sum(result.enumerated for result in results) + searched.refused,
        illegal=sum(result.illegal for result in results) + searched.refused,
        duplicates=sum(result.duplicates for result in expanded) + unexpanded.duplicates,
        infeasible=infeasible + outcome.too_large + unfit,
        bounded_b0=sum(result.num_members for result in expanded)
        - infeasible
        - refined
        + unexpanded.bounded
        + sum(p.bounded_b0 for p in paired),
        bounded_b1=outcome.paths - outcome.simulated + sum(result.bounded_b1 for result in paired),
        simulated=outcome.simulated + sum(result.simulated for result in paired),
        best_s=best,
        lower_bound_s=lower,
        gap=(best - lower) / best,
        optimal=outcome.certified,
        universal_gap=universal,
        infeasible_by_reason=(
            ("memory bound", infeasible + unfit),
            ("simulated memory", outcome.too_large),
        ),
    )


def problem_text(problem: Problem) -> str:
    """Text of a problem (model, cluster, job, runtime) from which digests are computed."""
    return _text_of(Same(problem))


@lru_cache(maxsize=64)
def _text_of(identity: Same[Problem]) -> str:
    """Cached `repr` of a problem's model, cluster, job and runtime, by the problem's identity."""
    problem = identity.value
    return repr((problem.model, problem.cluster, problem.job, problem.runtime))


def _alternative(best: Prediction, simulated: Simulated) -> Alternative:
    """Summarise a next best plan, with its largest breakdown differences to `best` in seconds."""
    best_parts, other_parts = dict(best.breakdown_s), dict(breakdown(simulated.result))
    changes = sorted(
        (
            (name, other_parts.get(name, 0.0) - best_parts.get(name, 0.0))
            for name in best_parts | other_parts
        ),
        key=lambda x: -abs(x[1]),
    )
    return Alternative(
        grid=simulated.grid,
        step_time_s=simulated.step_time_s,
        allocated_bytes=max(m.allocated for m in simulated.result.memory),
        changes=tuple(
            (name, value) for name, value in changes if abs(value) > 1e-4 * simulated.step_time_s
        )[:CHANGES],
        indistinguishable=simulated.step_time_s <= best.interval_s[1],
    )
