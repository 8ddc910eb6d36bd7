"""Runtime options that a search kept at one value although they change no numerics, and the
largest gain of another value.
"""

from __future__ import annotations

from shardwright.api.problems import capacity_of, facts_of, problem_of, space_of
from shardwright.runtime.registry import options_said
from shardwright.search.answer import Answer, Unsearched
from shardwright.search.grid.unsearched import unsearched
from shardwright.search.request import Request
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan


def unsearched_of(answer: Answer) -> Unsearched:
    """The options that the search of `answer` kept at one value although they change no
    numerics, and the largest gain of another value of one.
    """
    assert answer.request is not None
    return unsearched_beside(answer.request, answer.grid, step_time_s=answer.prediction.step_time_s)


def unsearched_beside(request: Request, strategy: Grid | Plan, *, step_time_s: float) -> Unsearched:
    """The options that a search over the grids of a request kept at one value, for its best
    strategy.
    """
    problem = problem_of(request)
    return unsearched(
        problem,
        space_of(request, problem, facts_of(problem)),
        strategy,
        step_time_s=step_time_s,
        capacity=capacity_of(request, problem),
        decided=frozenset(options_said(request.runtime)),
    )
