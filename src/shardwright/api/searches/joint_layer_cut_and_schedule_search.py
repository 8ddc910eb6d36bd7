"""Search for the best plan of the joint space."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.api.request_to_problem import (
    JOINT,
    capacity_of,
    facts_of,
    problem_of,
    require_unequal_stages,
    require_unranked,
    space_of,
    with_defaults,
)
from shardwright.api.searches.gain_of_unsearched_options import unsearched_beside
from shardwright.api.simulate_grid_or_plan_of_request import with_simulation
from shardwright.errors import UsageError
from shardwright.progress_callback import Progress
from shardwright.search.joint.find_joint import FOUND_ORDERS, NAMED_ORDERS, JointDetail, find_joint
from shardwright.search.joint.joint_plan_to_general_plan import joint_plan_text
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import GeneralAnswer, Unsearched
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import Stops
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid

SPACES = dict(zip(JOINT, (FOUND_ORDERS, NAMED_ORDERS), strict=True))
"""Joint space -> the pipeline schedules it has."""
CHOSEN_AXES: Final = {
    "first": "the layers",
    "last": "the layers",
    "recompute": "the recompute",
    "recompute_layers": "the recompute",
}
"""Axes of grids that a joint search chooses itself -> words for the choice."""


def plan_joint(
    request: Request,
    *,
    orders: str = FOUND_ORDERS,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    stops: Stops | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[JointDetail]:
    """Search the best plan over cut, splits, recompute, microbatches and schedule together.

    The joint space is over the request's grids.

    Args:
        request: a joint space is over the standard grids.
        orders: "found" or "named" (`search.joint.find_joint.find_joint`), of another space.
        tolerance: gap at which the search stops.
        stops, engine: see `find_joint`.

    Raises:
        InfeasibleError: nothing fits.
        UsageError: the model has a teacher.
    """
    require_unranked(request, "a joint search")
    request = with_defaults(request)
    problem = problem_of(request)
    if problem.model.teacher_layers:
        raise UsageError(
            "a model beside a teacher is not searched jointly yet",
            hint="--space standard or exhaustive",
        )
    require_unequal_stages(problem, "a joint search")
    facts = facts_of(problem)
    space, capacity = (
        space_of(_with_standard_space(request), problem, facts),
        capacity_of(request, problem),
    )
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
        stops=stops,
        memory=request.search_memory,
        engine=engine,
        progress=progress,
    )
    best = answer.detail.best
    name = print_grid(answer.strategy) if isinstance(answer.strategy, Grid) else ""
    name = joint_plan_text(best.plan) if best is not None else name
    return with_simulation(request, problem, answer, name=name)


def unsearched_joint(answer: GeneralAnswer[JointDetail]) -> Unsearched:
    """Options that a joint search kept at one value, and the largest gain of another value.

    Only options that change no numerics.
    """
    assert answer.simulation is not None
    return unsearched_beside(
        _with_standard_space(answer.simulation.request),
        answer.strategy,
        step_time_s=answer.step_time_s,
    )


def _with_standard_space(request: Request) -> Request:
    """The request with space standard if it names a space of grids; else unchanged."""
    return replace(request, space="standard") if request.space in SPACES else request
