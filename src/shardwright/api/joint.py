"""Search for the best plan of the joint space."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.api.problems import (
    JOINT,
    Progress,
    capacity_of,
    facts_of,
    problem_of,
    require_any_stages,
    require_unranked,
    space_of,
    with_defaults,
)
from shardwright.api.simulated import simulated
from shardwright.api.unsearched import unsearched_beside
from shardwright.errors import UsageError
from shardwright.program.problem import Problem
from shardwright.search.answer import Unsearched
from shardwright.search.engine.protocol import Engine
from shardwright.search.joint.find import FOUND_ORDERS, NAMED_ORDERS, JointAnswer, find_joint
from shardwright.search.joint.write import general_plan, short_text
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation
from shardwright.strategy.text.grid_notation import print_grid

SPACES = dict(zip(JOINT, (FOUND_ORDERS, NAMED_ORDERS), strict=True))
"""Names of joint spaces, and the orders that each has."""
CHOSEN_AXES: Final = {
    "first": "the layers",
    "last": "the layers",
    "recompute": "the recompute",
    "recompute_layers": "the recompute",
}
"""Axes of grids that a joint search has another choice in the place of."""


def plan_joint(
    request: Request,
    *,
    orders: str = FOUND_ORDERS,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    stop_at: tuple[int, int] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> JointAnswer:
    """The best plan of the joint space over the request's grids: cut, splits, recompute,
    microbatches and order together.

    Args:
        request: a joint space is over the standard grids.
        orders: "found" or "named" (`search.joint.find.find_joint`), for another space.
        tolerance: gap at which the search stops.
        stop_at, engine: see `find_joint`.

    Raises:
        InfeasibleError: nothing fits.
        UsageError: the model is beside a teacher.
    """
    require_unranked(request, "a joint search")
    request = with_defaults(request)
    problem = problem_of(request)
    if problem.model.teacher_layers:
        raise UsageError(
            "a model beside a teacher is not searched jointly yet",
            hint="--space standard or exhaustive",
        )
    require_any_stages(problem, "a joint search")
    facts = facts_of(problem)
    space, capacity = space_of(_grids(request), problem, facts), capacity_of(request, problem)
    for name, _ in (*request.pins, *request.excludes):
        if name in CHOSEN_AXES:
            raise UsageError(
                f"a joint search chooses {CHOSEN_AXES[name]} of each rank",
                hint=f"leave {name} free, or --space standard",
            )
    answer = find_joint(
        problem,
        space,
        facts,
        capacity=capacity,
        orders=NAMED_ORDERS
        if "schedule" in dict(request.pins)
        else SPACES.get(request.space, orders),
        tolerance=tolerance,
        time_limit_s=time_limit_s,
        stop_at=stop_at,
        memory=request.search_memory,
        engine=engine,
        progress=progress,
    )
    return replace(answer, simulation=_joint_simulation(request, problem, answer))


def unsearched_of_joint(answer: JointAnswer) -> Unsearched:
    """Options that the search of `answer` left at one value although they change no numerics, and
    the best gain of another value.
    """
    simulation = answer.simulation
    assert simulation is not None
    strategy = simulation.grid if simulation.grid is not None else simulation.plan
    assert strategy is not None
    return unsearched_beside(_grids(simulation.request), strategy, step_time_s=answer.step_time_s)


def _grids(request: Request) -> Request:
    """The request for the grids of a joint space."""
    return replace(request, space="standard") if request.space in SPACES else request


def _joint_simulation(request: Request, problem: Problem, answer: JointAnswer) -> Simulation:
    """Simulation of the best plan: of the general plan, or of the grid where that is best."""
    if answer.best is None:
        assert answer.grid is not None
        return simulated(request, problem, name=print_grid(answer.grid.grid), grid=answer.grid.grid)
    return simulated(
        request,
        problem,
        name=short_text(answer.best.plan),
        grid=None,
        plan=general_plan(problem, answer.best.plan),
    )
