"""Search of a grid space: bound all members, refine the best, certify the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.program.identity_keys import Same
from shardwright.program.problem import Problem
from shardwright.progress import Progress
from shardwright.search.certificate import Certificate, assert_sound
from shardwright.search.grid.best_first import Simulated
from shardwright.search.grid.bounds.bounded_space import Crossed
from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.search.grid.bounds.relaxed_mesh_bounds import NO_ROOM
from shardwright.search.grid.infeasible_hints import nothing_fits
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.grid.overlapped_schedules import PairedSearch
from shardwright.search.grid.search_by_mesh import Searched, search
from shardwright.search.search_answer import Alternative, Answer
from shardwright.search.search_limit import Limit, limit_of, out_of_time
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.universal_bound import universal_bound
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.step_breakdown import breakdown
from shardwright.strategy.grid.grid_rules import GridFacts

CHANGES: Final = 5
"""Most parts of the breakdown that are told of a next best plan."""


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
    """The best member of `space`, certified: the answer of `search_and_answer`."""
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
    """The best member of `space`, certified, and the search that found it.

    Args:
        limit: past it the best so far stands with its proven gap (`search.limit.limit_of`).
        memory: bytes that the search may take for members.
        hints: see `infeasible.nothing_fits`; not where the error is caught.

    Raises:
        OutOfTimeError: long past the limit there is no plan yet. InfeasibleError: no member fits;
        names the tightest constraint, by how much it is missed, and changes that would fit.
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
    """The certified answer of a finished search, without its seconds.

    Raises:
        OutOfTimeError: the limit cut in before all members were looked at, and none was found.
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
            tuple(searched.crossed),
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
class _Whole:
    """Numbers of members of the meshes that were not crossed, by fate.

    Args:
        enumerated: combinations of axis values, of them illegal and duplicates.
        infeasible: distinct members of meshes without room for any.
        bounded: the other distinct members.
    """

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0
    infeasible: int = 0
    bounded: int = 0


def _whole(searched: Searched) -> _Whole:
    """Numbers of members of the meshes that were not crossed: those left, and those repeated in
    another part.
    """
    found = _Whole()
    for meshes, seconds, _ in searched.left:
        legal, distinct = int(meshes.columns["legal"].sum()), meshes.columns["distinct"]
        unfit = int(distinct[seconds == NO_ROOM].sum())
        found.enumerated += meshes.enumerated
        found.illegal += meshes.enumerated - legal
        found.duplicates += legal - int(distinct.sum())
        found.infeasible += unfit
        found.bounded += int(distinct.sum()) - unfit
    for meshes in searched.repeated:
        legal = int(meshes.columns["legal"].sum())
        found.enumerated += meshes.enumerated
        found.illegal += meshes.enumerated - legal
        found.duplicates += legal
    return found


def certify(problem: Problem, space: Space, searched: Searched) -> Certificate:
    """The certificate of a search that ranked at least one member of `space`."""
    parts, outcome, paired, whole = (
        searched.crossed,
        searched.outcome,
        searched.paired,
        _whole(searched),
    )
    every: tuple[Crossed | PairedSearch | _Whole, ...] = (*parts, *paired, whole)
    unfit = sum(part.infeasible for part in paired) + whole.infeasible
    best = outcome.ranked[0].step_time_s
    infeasible = sum(part.infeasible for part in parts)
    refined = outcome.paths + outcome.too_large
    lower, universal = (
        min(outcome.lower_bound_s, best),
        1.0 - universal_bound(problem, space.devices) / best,
    )
    assert_sound(best_s=best, lower_bound_s=lower, universal_gap=universal)
    return Certificate(
        space=space.text(),
        digest=space.digest(problem_text(problem)),
        enumerated=sum(part.enumerated for part in every) + searched.refused,
        illegal=sum(part.illegal for part in every) + searched.refused,
        duplicates=sum(part.duplicates for part in parts) + whole.duplicates,
        infeasible=infeasible + outcome.too_large + unfit,
        bounded_b0=sum(part.num_members for part in parts)
        - infeasible
        - refined
        + whole.bounded
        + sum(p.bounded_b0 for p in paired),
        bounded_b1=outcome.paths - outcome.simulated + sum(part.bounded_b1 for part in paired),
        simulated=outcome.simulated + sum(part.simulated for part in paired),
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
    """Text of the problem for its digest."""
    return _text_of(Same(problem))


@lru_cache(maxsize=64)
def _text_of(known: Same[Problem]) -> str:
    problem = known.value
    return repr((problem.model, problem.cluster, problem.job, problem.runtime))


def _alternative(best: Prediction, other: Simulated) -> Alternative:
    here, there = dict(best.breakdown_s), dict(breakdown(other.result))
    changes = sorted(
        ((name, there.get(name, 0.0) - here.get(name, 0.0)) for name in here | there),
        key=lambda x: -abs(x[1]),
    )
    return Alternative(
        grid=other.grid,
        step_time_s=other.step_time_s,
        allocated_bytes=max(m.allocated for m in other.result.memory),
        changes=tuple(
            (name, value) for name, value in changes if abs(value) > 1e-4 * other.step_time_s
        )[:CHANGES],
        indistinguishable=other.step_time_s <= best.interval_s[1],
    )
