"""Verify an answer again: enumerate, bound, and simulate a random part and everything that could still win."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.cost.member import step_costs
from shardwright.errors import DataError
from shardwright.program.problem import Problem
from shardwright.search.answer import Answer
from shardwright.search.find import bound_space, problem_text
from shardwright.search.members import member_grid
from shardwright.search.space import Space
from shardwright.simulator.evaluate import path_seconds, simulate_grid
from shardwright.strategy.grid_notation import print_grid
from shardwright.strategy.grid_rules import GridFacts, violations

Progress = Callable[[str, int, int], None]

SHARE = 0.01
MOST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What was verified: members counted, bounded again, simulated again; the largest |S - claimed| / claimed of the answer."""

    enumerated: int
    sampled: int
    contenders: int
    drift: float


def recheck(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    answer: Answer,
    *,
    capacity: int,
    generator: random.Random,
    progress: Progress | None = None,
) -> Recheck:
    """Verify `answer`'s certificate.

    Every count is made again. A random 1 % of the feasible members (at most MOST) and every member whose bound is below the claimed best
    are checked against S: B0 <= B1 <= S, and none beats the best.

    Raises:
        DataError: a count, a bound or the claim does not hold; says which.
    """
    claim = answer.certificate
    if claim.digest != space.digest(problem_text(problem)):
        raise DataError("the plan's certificate is for another problem or space", hint="was the file edited, or made by another version?")
    if violations(answer.grid, facts=facts):
        raise DataError(f"the plan's strategy is not legal: {violations(answer.grid, facts=facts)[0].message}")
    bounded = bound_space(problem, space, facts, capacity=capacity)
    members = bounded.members
    found = (members.enumerated, members.illegal, members.duplicates)
    if found != (claim.enumerated, claim.illegal, claim.duplicates):
        raise DataError(f"enumerated, illegal, duplicates are {found}, the certificate says otherwise", hint="plan again")
    best = simulate_grid(problem, answer.grid).step_time_s
    drift = abs(best - claim.best_s) / claim.best_s
    if drift > 1e-8:
        raise DataError(f"the plan takes {best:.6g} s, the certificate says {claim.best_s:.6g} s", hint="plan again")
    feasible = np.flatnonzero(np.isfinite(bounded.seconds))
    contenders = feasible[bounded.seconds[feasible] < claim.best_s * (1 - 1e-9)]
    sample = generator.sample(feasible.tolist(), min(MOST, max(round(SHARE * len(feasible)), 1)))
    for done, place in enumerate(dict.fromkeys([*contenders.tolist(), *sample])):
        if progress is not None:
            progress("check", done, len(contenders) + len(sample))
        grid, priced = member_grid(members, place), bounded.prepared.priced(place)
        costs = step_costs(problem, grid, priced)
        path = path_seconds(problem, grid, costs)
        _ordered(grid_text=print_grid(grid), lower=float(bounded.seconds[place]), upper=path, names="B0 and B1")
        if path >= claim.best_s and place not in sample[:20]:
            continue
        seconds = simulate_grid(problem, grid, priced).step_time_s
        _ordered(grid_text=print_grid(grid), lower=path, upper=seconds, names="B1 and S")
        if seconds < claim.best_s * (1 - 1e-9):
            raise DataError(f"{print_grid(grid)} takes {seconds:.6g} s, less than the plan's {claim.best_s:.6g} s", hint="plan again")
    return Recheck(enumerated=members.enumerated, sampled=len(sample), contenders=len(contenders), drift=drift)


def _ordered(*, grid_text: str, lower: float, upper: float, names: str) -> None:
    if lower > upper * (1 + 1e-9):
        raise DataError(f"{grid_text}: {names} are out of order ({lower:.9g} > {upper:.9g})", hint="this is a bug: please report it")
