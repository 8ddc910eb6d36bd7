"""Find runtime options that a search kept at one value, and the gain of another value.

Only options that change no numerics.
"""

from __future__ import annotations

from shardwright.api.request_to_problem import capacity_of, facts_of, problem_of, space_of
from shardwright.runtime.runtime_registry import options_in_text
from shardwright.search.grid.gain_of_unsearched_options import unsearched
from shardwright.search.search_answer import Answer, Unsearched
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan


def unsearched_of(answer: Answer) -> Unsearched:
    """Options that a grid search left at one value, and the largest gain of another value.

    Only options that change no numerics.
    """
    assert answer.request is not None
    return unsearched_beside(answer.request, answer.grid, step_time_s=answer.prediction.step_time_s)


def unsearched_beside(request: Request, strategy: Grid | Plan, *, step_time_s: float) -> Unsearched:
    """Options left at one value by a request's grids, and another value's gain over `strategy`."""
    problem = problem_of(request)
    return unsearched(
        problem,
        space_of(request, problem, facts_of(problem)),
        strategy,
        step_time_s=step_time_s,
        capacity=capacity_of(request, problem),
        decided=frozenset(options_in_text(request.runtime)),
    )
