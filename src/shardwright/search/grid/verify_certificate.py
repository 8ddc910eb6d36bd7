"""Verification of a search answer: search again, and check a random sample and all contenders."""

from __future__ import annotations

import random

import numpy as np

from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.search.grid.bounds.members_with_time_and_memory import (
    Bounded,
    ExpandedMembers,
    bound_space,
    record_of_members,
)
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.find_best_grid import certify, problem_text
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import Answer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit
from shardwright.search.universal_time_bound import universal_bound
from shardwright.simulator.prediction import host_lack
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes

SHARE = 0.01
MOST = 400
SIMULATED = 20
"""Sampled members that are simulated although their B1 is above the best."""
DRIFT = 1e-8
"""Relative difference that a plan file may have: its numbers have nine digits."""
CROSSED = 3
"""Meshes sampled from those that the search never expanded."""
REPLAYED = ("infeasible", "bounded_b0", "bounded_b1", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Counts of verified members, and the largest relative deviation of the answer's step times.

    Args:
        leaves: values of the plan's file that were recomputed, 0 if there is no file.
    """

    strategies: int
    sampled: int
    contenders: int
    drift: float
    leaves: int = 0


def recheck(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    answer: Answer,
    *,
    capacity: int,
    generator: random.Random,
    repeated: Searched | None = None,
    memory: int = SEARCH_MEMORY,
    progress: Progress | None = None,
) -> Recheck:
    """Verify the certificate of `answer` by recount, sample and all contenders, or DataError.

    Every count is made again. A random 1 % of the feasible members (at most MOST) and every member
    whose bound is below the claimed one are checked against S: B0 <= B1 <= S, and no member that
    fits beats the claimed lower bound.

    Args:
        repeated: the same search, if it was repeated and compared with the claim already.
        memory: as of `search`.

    Raises:
        DataError: a count, a bound or the claim does not hold; the message names it.
    """
    claim = answer.certificate
    _require_same_question(claim, problem, space)
    drift = _recheck_strategies(problem, facts, answer, capacity)
    searched = repeated or _search_again(problem, space, facts, answer, capacity, memory)
    _recheck_counts(claim, certify(problem, space, searched))
    parts = (
        *searched.expanded,
        *_sampled_unexpanded_meshes(problem, space, facts, searched, claim, capacity, generator),
    )
    start = np.cumsum([0, *(part.feasible for part in parts)]).tolist()
    sample = generator.sample(
        range(start[-1]), min(MOST, start[-1], max(round(SHARE * start[-1]), 1))
    )
    simulated, contenders = set(sample[:SIMULATED]), 0
    for number, (part, first, end) in enumerate(zip(parts, start, start[1:], strict=False)):
        if progress is not None:
            progress("check", number, len(parts))
        bounded = part.bounded(problem, facts, capacity=capacity)
        feasible = np.flatnonzero(np.isfinite(bounded.seconds))
        could_win = feasible[bounded.seconds[feasible] < claim.lower_bound_s * (1 - 1e-9)].tolist()
        chosen = {
            int(feasible[place - first]): place in simulated
            for place in sample
            if first <= place < end
        }
        for place in dict.fromkeys([*could_win, *chosen]):
            _recheck_member(
                problem, bounded, place, claim, capacity, always=chosen.get(place, False)
            )
        contenders += len(could_win)
    return Recheck(
        strategies=claim.strategies, sampled=len(sample), contenders=contenders, drift=drift
    )


def _sampled_unexpanded_meshes(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    searched: Searched,
    claim: Certificate,
    capacity: int,
    generator: random.Random,
) -> tuple[ExpandedMembers, ...]:
    """Expand a random sample of unexpanded meshes; DataError if their bounds are out of order.

    No mesh may have a bound below the claimed lower bound, or above those of its members.
    """
    expanded: list[ExpandedMembers] = []
    for meshes, seconds, part in searched.left:
        if float(seconds.min(initial=float("inf"))) < claim.lower_bound_s * (1 - 1e-9):
            raise DataError(
                "a mesh without an expanded member could be faster than the plan's lower bound",
                hint="plan again",
            )
        for row in generator.sample(range(len(meshes)), min(CROSSED, len(meshes))):
            mesh = meshes.take(np.array([row]))
            bounded = bound_space(
                under(problem, part.chosen), part, facts, capacity=capacity, meshes=mesh
            )
            expanded.append(record_of_members(part, mesh, bounded, keep=True))
            least_b0 = float(bounded.seconds.min(initial=float("inf")))
            _require_order(
                grid_text=f"mesh {row}",
                lower=float(seconds[row]),
                upper=least_b0,
                names="the mesh's bound and B0",
            )
    return tuple(expanded)


def _require_same_question(claim: Certificate, problem: Problem, space: Space) -> None:
    """Raise DataError unless the claim is for this problem and space, with consistent gaps."""
    if claim.digest != space.digest(problem_text(problem)) or claim.space != space.text():
        raise DataError(
            "the plan's certificate is for another problem or space",
            hint="was the file edited, or made by another version?",
        )
    gap = (claim.best_s - claim.lower_bound_s) / claim.best_s if claim.best_s > 0 else -1.0
    if not (
        0.0 <= gap < 1.0 and abs(claim.gap - gap) <= DRIFT and claim.optimal == (claim.gap == 0.0)
    ):
        raise DataError(
            f"best {claim.best_s:.6g} s and lower bound {claim.lower_bound_s:.6g} s do not make a"
            f" gap of {claim.gap:.6g}, {'optimal' if claim.optimal else 'not optimal'}",
            hint="plan again",
        )
    universal = 1.0 - universal_bound(problem, space.devices) / claim.best_s
    if abs(claim.universal_gap - universal) > 1e-6:
        raise DataError(
            f"the universal gap is {universal:.6g}, the certificate says {claim.universal_gap:.6g}",
            hint="plan again",
        )


def _recheck_strategies(problem: Problem, facts: GridFacts, answer: Answer, capacity: int) -> float:
    """Largest relative error of the answer's step times; DataError above DRIFT or if not legal.

    Return the largest relative deviation of a step time.
    """
    claims = [
        (answer.grid, answer.certificate.best_s),
        *((a.grid, a.step_time_s) for a in answer.alternatives),
    ]
    drift = 0.0
    for grid, seconds in claims:
        broken = violations(grid, facts=facts, general=True)
        if broken:
            raise DataError(f"the plan's strategy is not legal: {broken[0].message}")
        done = simulate_grid(problem, grid)
        need = done.need
        if need > capacity:
            raise DataError(
                f"{print_grid(grid)} needs {format_bytes(need)}, more than the"
                f" {format_bytes(capacity)} of a device"
            )
        if not done.fits_hosts:
            raise DataError(
                f"{print_grid(grid)} does not fit {host_lack(done.host_memory)}",
                hint="plan again",
            )
        drift = max(drift, abs(done.step_time_s - seconds) / seconds if seconds > 0 else 1.0)
        if drift > DRIFT:
            raise DataError(
                f"{print_grid(grid)} takes {done.step_time_s:.6g} s, the plan says {seconds:.6g} s",
                hint="plan again",
            )
    return drift


def _recheck_counts(claim: Certificate, again: Certificate) -> None:
    """Raise DataError unless the counts that need no refinement agree and all counts add up."""
    counts = (again.enumerated, again.illegal, again.duplicates)
    if counts != (claim.enumerated, claim.illegal, claim.duplicates):
        raise DataError(
            f"enumerated, illegal, duplicates are {counts}, the certificate says otherwise",
            hint="plan again",
        )
    parts, least_infeasible = (
        (claim.infeasible, claim.bounded_b0, claim.bounded_b1, claim.simulated),
        dict(again.infeasible_by_reason)["memory bound"],
    )
    distinct = claim.enumerated - claim.illegal - claim.duplicates
    if sum(parts) != distinct or min(parts) < 0 or claim.infeasible < least_infeasible:
        raise DataError(
            f"infeasible, bounded and simulated members {parts} do not make {distinct}",
            hint="plan again",
        )


def _search_again(
    problem: Problem, space: Space, facts: GridFacts, answer: Answer, capacity: int, memory: int
) -> Searched:
    """Repeat the search; raise DataError if ranking or counts differ from an optimal claim's."""
    ranked = 1 + len(answer.alternatives)
    claims = [
        canonical(grid, facts=facts)
        for grid in (answer.grid, *(a.grid for a in answer.alternatives))
    ]
    # A search that ranked fewer than it was asked for went through all members, and counted those
    # too large on its way.
    for top in (ranked, ranked + 1):
        limit = Limit(stop_at=answer.certificate.stopped_at)
        searched = search(
            problem, space, facts, capacity=capacity, top=top, limit=limit, memory=memory
        )
        again = certify(problem, space, searched)
        same_ranking = [
            canonical(s.grid, facts=facts) for s in searched.outcome.ranked[:ranked]
        ] == claims
        same_counts = all(
            getattr(again, name) == getattr(answer.certificate, name) for name in REPLAYED
        )
        if not answer.certificate.optimal or (same_ranking and same_counts):
            return searched
    if not same_ranking:
        raise DataError(
            "the best strategies of the space begin with"
            f" {print_grid(searched.outcome.ranked[0].grid)}",
            hint="plan again",
        )
    counts = ", ".join(f"{name} {getattr(again, name)}" for name in REPLAYED)
    raise DataError(
        f"the search counts {counts}; the certificate says otherwise", hint="plan again"
    )


def _recheck_member(
    problem: Problem,
    bounded: Bounded,
    place: int,
    claim: Certificate,
    capacity: int,
    *,
    always: bool,
) -> None:
    """Raise DataError if one member's bounds are out of order or its step beats the claim.

    The member is simulated only if its longest path is below the claim, or `always`.
    """
    grid, priced = member_grid(bounded.members, place), bounded.prepared.priced(place)
    problem = under(problem, grid.options)
    costs = step_costs(problem, grid, priced)
    path = member_path(problem, bounded.prepared, place, grid, costs)
    _require_order(
        grid_text=print_grid(grid),
        lower=float(bounded.seconds[place]),
        upper=path,
        names="B0 and B1",
    )
    if path >= claim.lower_bound_s and not always:
        return
    simulated = simulate_grid(problem, grid)
    _require_order(
        grid_text=print_grid(grid), lower=path, upper=simulated.step_time_s, names="B1 and S"
    )
    if simulated.fits_in(capacity) and simulated.step_time_s < claim.lower_bound_s * (1 - DRIFT):
        raise DataError(
            f"{print_grid(grid)} takes {simulated.step_time_s:.6g} s, less than the plan's bound"
            f" {claim.lower_bound_s:.6g} s",
            hint="plan again",
        )


def _require_order(*, grid_text: str, lower: float, upper: float, names: str) -> None:
    """Raise DataError if the lower of two bounds exceeds the upper one."""
    if lower > upper * (1 + 1e-9):
        raise DataError(
            f"{grid_text}: {names} are out of order ({lower:.9g} > {upper:.9g})",
            hint="this is a bug: please report it",
        )
