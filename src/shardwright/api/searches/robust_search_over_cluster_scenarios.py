"""Search for one plan for several scenarios of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.searches.mixed_search_pins_and_memory_headroom import (
    NAME,
    choices_for,
    with_headroom,
)
from shardwright.api.simulate_grid_or_plan_of_request import with_simulation
from shardwright.errors import UsageError
from shardwright.hardware.slowdown_scenarios import State, cluster_in_state, time_shares
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.robust.best_plans_in_one_state import (
    GridQuestion,
    MixedQuestion,
    StateQuestion,
)
from shardwright.search.robust.find_robust import find_robust
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid


def plan_robust(
    request: Request, *, engine: Engine | None = None, progress: Progress | None = None
) -> GeneralAnswer[tuple[float, ...]]:
    """Search the plan with the least mean step over the slowest (1 - tail) of a file's scenarios.

    See `search.robust.find_robust`; `request.tail` sets the share of slow scenarios.

    Args:
        engine: engine that runs searches and simulations; the answer is the same.

    Raises:
        ClusterError: the file cannot be read, or is for another cluster. UsageError: the level
        of the tail is not valid. InfeasibleError: nothing fits in some state.
    """
    if not 0.0 <= request.tail <= 1.0:
        raise UsageError(
            f"a tail of {request.tail:g}",
            hint="0 is the mean over all scenarios, 0.9 that of the slowest tenth, 1 the slowest",
        )
    request = with_defaults(request)
    problem = problem_of(request)
    found = find_robust(
        _scenario_tasks(request, problem),
        level=request.tail,
        engine=engine or Serial(),
        top=request.top,
        progress=progress,
    )
    name = "" if isinstance(found.strategy, Grid) else NAME
    return with_simulation(request, problem, found, name=name)


def _scenario_tasks(request: Request, problem: Problem) -> tuple[StateQuestion, ...]:
    """One search task for each scenario of the request's file, with its share of the time."""
    from shardwright.hardware.files.weighted_cluster_conditions_file import (
        load_states,
    )  # pydantic and yaml only where a file is read

    states = load_states(Path(request.scenarios))
    return tuple(
        _scenario_task(request, problem, state, share=share)
        for state, share in zip(states, time_shares(states), strict=True)
    )


def _scenario_task(
    request: Request, problem: Problem, state: State, *, share: float
) -> StateQuestion:
    """Search task of one scenario: its problem, the space that bounds it, and further plans."""
    there = replace(problem, cluster=cluster_in_state(problem.cluster, state))
    alike = replace(problem, cluster=cluster_in_state(problem.cluster, state.alike))
    return StateQuestion(
        state=state,
        share=share,
        problem=with_headroom(request, there),
        bounding=_grid_task(request, alike)
        if alike.cluster.is_uniform
        else _mixed_task(request, alike),
        further=_uneven_nodes_task(request, there) if state.nodes else None,
    )


def _grid_task(request: Request, problem: Problem) -> GridQuestion:
    """Task of searching the request's grids on a uniform cluster."""
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), capacity_of(request, problem)
    return GridQuestion(
        problem=problem, space=space, facts=facts, capacity=capacity, memory=request.search_memory
    )


def _mixed_task(request: Request, problem: Problem) -> MixedQuestion:
    """Task of searching plans with unequal pipelines on a cluster of several device kinds."""
    return MixedQuestion(
        problem=with_headroom(request, problem),
        choices=choices_for(request, problem),
        memory=request.search_memory,
    )


def _uneven_nodes_task(request: Request, problem: Problem) -> MixedQuestion | None:
    """Task of searching plans that give slow nodes less work; None if pins allow only grids."""
    try:
        return _mixed_task(request, problem)
    except UsageError:
        return None
