"""Search for one plan for several states of a cluster."""

from __future__ import annotations

import time
from dataclasses import field, replace
from pathlib import Path

from shardwright.api.mixed import NAME, choices_for, roomy
from shardwright.api.problems import (
    Progress,
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.simulated import simulated
from shardwright.errors import UsageError
from shardwright.hardware.states import State, in_state, shares_of
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.certificate import Certificate, claim
from shardwright.search.engine.protocol import Engine
from shardwright.search.engine.serial import Serial
from shardwright.search.request import Request
from shardwright.search.robust.find import find_robust
from shardwright.search.robust.ranking import GridQuestion, MixedQuestion, StateQuestion
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid.axes import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustAnswer:
    """The plan that is best over several states of a cluster.

    Args:
        simulation: simulation of the plan on the cluster as it is.
        certificate: its seconds are means of the slow tail; its part `scenarios` has every state.
    """

    simulation: Simulation
    certificate: Certificate
    search_time_s: float = field(default=0.0, compare=False)
    waited: bool = field(default=False, compare=False)

    @property
    def step_time_s(self) -> float:
        """Mean step seconds of the slow tail."""
        return self.certificate.best_s

    def __str__(self) -> str:
        """Request, plan and proof in a few lines."""
        proof = self.certificate
        claim_text = claim(optimal=proof.optimal, lower_bound_s=proof.lower_bound_s)
        return f"{self.simulation}\n{claim_text}"


def plan_robust(
    request: Request, *, engine: Engine | None = None, progress: Progress | None = None
) -> RobustAnswer:
    """The plan with the least mean step in the slow tail of the states in the request's scenario
    file (`search.robust.find`).

    Args:
        engine: runs the searches and simulations; the answer is the same.

    Raises:
        ClusterError: the file cannot be read, or is of another cluster.
        UsageError: the level of the tail is none.
        InfeasibleError: nothing fits in some state.
    """
    begun = time.monotonic()
    if not 0.0 <= request.tail <= 1.0:
        raise UsageError(
            f"a tail of {request.tail:g}",
            hint="0 is the mean over all scenarios, 0.9 that of the slowest tenth, 1 the slowest",
        )
    request = with_defaults(request)
    problem = problem_of(request)
    best = find_robust(
        _questions(request, problem),
        level=request.tail,
        engine=engine or Serial(),
        top=request.top,
        progress=progress,
    )
    grid = best.best if isinstance(best.best, Grid) else None
    plan = None if isinstance(best.best, Grid) else best.best
    return RobustAnswer(
        simulation=simulated(
            request, problem, name="" if grid is not None else NAME, grid=grid, plan=plan
        ),
        certificate=best.certificate,
        search_time_s=time.monotonic() - begun,
    )


def _questions(request: Request, problem: Problem) -> tuple[StateQuestion, ...]:
    from shardwright.hardware.files.yaml_states import (
        load_states,
    )  # pydantic and yaml only where a file is read

    states = load_states(Path(request.scenarios))
    return tuple(
        _question(request, problem, state, share=share)
        for state, share in zip(states, shares_of(states), strict=True)
    )


def _question(request: Request, problem: Problem, state: State, *, share: float) -> StateQuestion:
    in_this_state = replace(problem, cluster=in_state(problem.cluster, state))
    uniform_state = replace(problem, cluster=in_state(problem.cluster, state.alike))
    return StateQuestion(
        state=state,
        share=share,
        problem=roomy(request, in_this_state),
        bounding=_grids(request, uniform_state)
        if uniform_state.cluster.is_uniform
        else _mixed(request, uniform_state),
        further=_further(request, in_this_state) if state.nodes else None,
    )


def _grids(request: Request, problem: Problem) -> GridQuestion:
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), capacity_of(request, problem)
    return GridQuestion(
        problem=problem, space=space, facts=facts, capacity=capacity, memory=request.search_memory
    )


def _mixed(request: Request, problem: Problem) -> MixedQuestion:
    return MixedQuestion(
        problem=roomy(request, problem),
        choices=choices_for(request, problem),
        memory=request.search_memory,
    )


def _further(request: Request, problem: Problem) -> MixedQuestion | None:
    """The question with plans that give slow nodes less work, or none; None where the pins leave
    grids alone.
    """
    try:
        return _mixed(request, problem)
    except UsageError:
        return None
