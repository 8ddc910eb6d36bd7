"""The fastest plans of one state of a cluster, and a lower bound of every other plan of the
space there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import inf

from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster_states import State
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.certificate import Certificate
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.plans.simulated_plans import simulate_feasible
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.simulator.plan_simulation import plan_of_grid
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A plan that may be simulated in every state, with its text."""

    strategy: Grid | Plan
    text: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridQuestion:
    """A search of grids on a uniform cluster: the space, the bytes of a device that plans may
    use, and those that the search may use.
    """

    problem: Problem
    space: Space
    facts: GridFacts
    capacity: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedQuestion:
    """A search of a mixed cluster whose devices have the memory that plans may use."""

    problem: Problem
    choices: PinnedValues
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuestion:
    """One state of the cluster.

    Args:
        share: of the time.
        problem: in the state, with the memory that plans may fill.
        bounding: the space that is bounded, on a cluster on which no plan of it is slower than in
            the state.
        further: plans that may be better in the state than any of that space.
    """

    state: State
    share: float
    problem: Problem
    bounding: GridQuestion | MixedQuestion
    further: MixedQuestion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """A task: rank the `top` best plans of a state; `further` = among the plans that may only be
    better there.
    """

    number: int
    top: int
    further: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The fastest plans of a state.

    Args:
        plans: best first.
        steps_s: no less than these does each take in the state.
        beyond_s: no other plan of the space is faster; inf = there is none that fits.
        certificate: of the search.
        more: a longer ranking says more.
    """

    plans: tuple[Contender, ...]
    steps_s: tuple[float, ...]
    beyond_s: float
    certificate: Certificate
    more: bool


def ranked(questions: Sequence[StateQuestion], task: RankTask) -> Ranking | None:
    """The best plans of a state; None where further ones were asked for and none fits.

    Raises:
        InfeasibleError: nothing fits.
    """
    question = questions[task.number]
    if task.further:
        assert question.further is not None
        try:
            return _of_mixed(question.further, task.top)
        except InfeasibleError:
            return None
    asked = question.bounding
    return (
        _of_grids(asked, task.top)
        if isinstance(asked, GridQuestion)
        else _of_mixed(asked, task.top)
    )


def _of_grids(asked: GridQuestion, top: int) -> Ranking:
    """The best grids of a state, ranked with proof: no other grid is faster than the last of
    them, or than the bound of a stopped search.
    """
    answer = find(
        asked.problem,
        asked.space,
        asked.facts,
        capacity=asked.capacity,
        top=top,
        memory=asked.memory,
    )
    grids = (answer.grid, *(one.grid for one in answer.alternatives))
    steps_s = (answer.prediction.step_time_s, *(one.step_time_s for one in answer.alternatives))
    stopped = answer.certificate.stopped_at > 0
    more = len(grids) == top and not stopped
    beyond_s = answer.certificate.lower_bound_s if stopped else steps_s[-1] if more else inf
    return Ranking(
        plans=tuple(Contender(strategy=one, text=print_grid(one)) for one in grids),
        steps_s=steps_s,
        beyond_s=beyond_s,
        certificate=answer.certificate,
        more=more,
    )


def _of_mixed(asked: MixedQuestion, top: int) -> Ranking:
    """The best mixed plans of a state, without proof of their rank: all have the bound of the
    whole space.
    """
    answer = find_mixed(asked.problem, choices=asked.choices, top=top - 1, memory=asked.memory)
    part, bound_s = answer.certificate.mixed, answer.certificate.lower_bound_s
    assert part is not None
    # A best plan that is no pipeline over several kinds is the best grid of one.
    alone = part.fastest_alone.strategy if part.fastest_alone is not None else ""
    plans = [
        Contender(strategy=answer.strategy, text=part.pipelines or alone),
        *(Contender(strategy=one.plan, text=one.pipelines) for one in part.runners),
    ]
    steps_s = (answer.step_time_s, *(one.step_time_s for one in part.runners))
    return Ranking(
        plans=tuple(plans),
        steps_s=steps_s,
        beyond_s=bound_s,
        certificate=answer.certificate,
        more=False,
    )


def seconds_in(questions: Sequence[StateQuestion], task: tuple[int, Contender]) -> float:
    """Seconds of a plan's step in a state; inf = it does not fit, or is not legal there."""
    number, contender = task
    problem, strategy = questions[number].problem, contender.strategy
    done = simulate_feasible(
        problem, plan_of_grid(problem, strategy) if isinstance(strategy, Grid) else strategy
    )
    return inf if done is None else done.step_time_s
