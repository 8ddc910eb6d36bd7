"""The fastest plans of one state of a cluster, and a lower bound of all other plans there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import inf

from shardwright.errors import InfeasibleError
from shardwright.hardware.slowdown_scenarios import State
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.plans.plan_search_state import simulate_feasible
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.optimality_certificate import Certificate
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A plan that may be simulated in every state, with its text."""

    strategy: Grid | Plan
    text: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridQuestion:
    """Inputs of a search of grids on a uniform cluster.

    Args:
        capacity: bytes of a device that plans may use.
        memory: bytes that the search may use for members.
    """

    problem: Problem
    space: Space
    facts: GridFacts
    capacity: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedQuestion:
    """Inputs of a search of a mixed cluster whose devices have the memory that plans may use."""

    problem: Problem
    choices: PinnedValues
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuestion:
    """One state of the cluster, with the searches of its plans.

    Args:
        share: fraction of the time in this state.
        problem: problem in the state, with the memory that plans may fill.
        bounding: search whose space is bounded, on a cluster on which none of its plans is slower
            than in the state.
        further: search of plans that may be better in the state than any plan of that space.
    """

    state: State
    share: float
    problem: Problem
    bounding: GridQuestion | MixedQuestion
    further: MixedQuestion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """Task: rank the `top` best plans of state `number`, or of its `further` search."""

    number: int
    top: int
    further: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The fastest plans of a state, with a lower bound on all others.

    Args:
        plans: best first.
        steps_s: simulated seconds of each plan's step in the state.
        beyond_s: lower bound in seconds of every other plan of the space; inf = no other plan fits.
        certificate: certificate of the search.
        more: True if a longer ranking would add plans.
    """

    plans: tuple[Contender, ...]
    steps_s: tuple[float, ...]
    beyond_s: float
    certificate: Certificate
    more: bool


def ranked(questions: Sequence[StateQuestion], task: RankTask) -> Ranking | None:
    """Rank the best plans of a state; None if its further search has no plan that fits.

    Raises:
        InfeasibleError: no plan of the bounding search fits.
    """
    question = questions[task.number]
    if task.further:
        assert question.further is not None
        try:
            return _rank_mixed_plans(question.further, task.top)
        except InfeasibleError:
            return None
    search = question.bounding
    return (
        _rank_grids(search, task.top)
        if isinstance(search, GridQuestion)
        else _rank_mixed_plans(search, task.top)
    )


def _rank_grids(search: GridQuestion, top: int) -> Ranking:
    """Rank the `top` best grids of a state, with a proven lower bound of all other grids.

    No other grid is faster than the last ranked grid, or than the bound of a stopped search.
    """
    answer = find(
        search.problem,
        search.space,
        search.facts,
        capacity=search.capacity,
        top=top,
        memory=search.memory,
    )
    grids = (answer.grid, *(item.grid for item in answer.alternatives))
    steps_s = (answer.prediction.step_time_s, *(item.step_time_s for item in answer.alternatives))
    stopped = answer.certificate.stopped_at > 0
    more = len(grids) == top and not stopped
    beyond_s = answer.certificate.lower_bound_s if stopped else steps_s[-1] if more else inf
    return Ranking(
        plans=tuple(Contender(strategy=item, text=print_grid(item)) for item in grids),
        steps_s=steps_s,
        beyond_s=beyond_s,
        certificate=answer.certificate,
        more=more,
    )


def _rank_mixed_plans(search: MixedQuestion, top: int) -> Ranking:
    """Rank the best mixed plans found in a state, beside the lower bound of its whole space.

    Their order is not proven.
    """
    answer = find_mixed(search.problem, choices=search.choices, top=top - 1, memory=search.memory)
    part, bound_s = answer.certificate.mixed, answer.certificate.lower_bound_s
    assert part is not None
    # A best plan that is no pipeline over several device kinds is the best grid of one kind.
    grid_text = part.fastest_alone.strategy if part.fastest_alone is not None else ""
    plans = [
        Contender(strategy=answer.strategy, text=part.pipelines or grid_text),
        *(Contender(strategy=runner.plan, text=runner.pipelines) for runner in part.runners),
    ]
    steps_s = (answer.step_time_s, *(runner.step_time_s for runner in part.runners))
    return Ranking(
        plans=tuple(plans),
        steps_s=steps_s,
        beyond_s=bound_s,
        certificate=answer.certificate,
        more=False,
    )


def seconds_in(questions: Sequence[StateQuestion], task: tuple[int, Contender]) -> float:
    """Simulated step seconds of a plan in a state; inf if illegal there or too large."""
    number, contender = task
    problem, strategy = questions[number].problem, contender.strategy
    simulation = simulate_feasible(
        problem, plan_of_grid(problem, strategy) if isinstance(strategy, Grid) else strategy
    )
    return inf if simulation is None else simulation.step_time_s
