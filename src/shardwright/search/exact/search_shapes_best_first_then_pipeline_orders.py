"""Best-first search of the exact space: shapes by their bounds, then the orders of each shape.

A shape is a plan without its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.progress_callback import Progress
from shardwright.search.exact.tasks_shared_by_all_orders import ShapeTasks
from shardwright.search.optimality_certificate import Counts
from shardwright.search.search_time_limit import Limit, progress_text
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(slots=True)
class Best:
    """The fastest plan found so far, and its step seconds."""

    seconds: float = inf
    plan: Plan | None = None


def best_first(
    bounds: FloatArray,
    evaluate: Callable[[int], None],
    *,
    best: Best,
    floor_s: float,
    limit: Limit,
    words: str,
    progress: Progress | None,
) -> tuple[IntArray, float]:
    """Evaluate shapes by rising bound until none can win or time ends: (shapes left, bound in s).

    Args:
        bounds: (shapes,) seconds that no order of a shape can beat.
        evaluate: evaluates the shape with a number and updates `best`.
        floor_s: seconds that no member without a bound of its own can beat.
        words: name of the search phase for `progress`.

    Returns:
        Numbers of the shapes that were not evaluated, and a lower bound in seconds of all members
        that were not evaluated (`floor_s` if all were).
    """
    # All shapes after a shape that cannot be better have bounds at least as large, so its bound
    # holds for all of them.
    by_bound = np.argsort(bounds, kind="stable")
    for rank, shape in enumerate(by_bound):
        if bounds[shape] >= best.seconds or limit.ends(found=best.plan is not None):
            return by_bound[rank:], min(floor_s, float(bounds[shape]))
        evaluate(int(shape))
        if progress is not None:
            message = progress_text(
                words, best_s=best.seconds, lower_s=min(floor_s, float(bounds[shape])), limit=limit
            )
            progress(message, rank + 1, len(by_bound))
    return by_bound[:0], floor_s


def run_orders(
    tasks: ShapeTasks,
    orders: IntArray,
    *,
    jitter: float,
    best: Best,
    counts: Counts,
    plan_of: Callable[[IntArray], Plan],
    fits: Callable[[Plan], bool],
) -> None:
    """Bound orders of a shape by longest path; simulate those below the best step; update `best`.

    Args:
        orders: (orders, stages, 2 m) actions, as `ShapeTasks.finish` takes them.
        jitter: factor on the step for the devices that the plan uses.
        fits: True if the plan's nodes have enough host memory for the offload of all stages.
    """
    paths = tasks.finish(orders, contended=False) / PICOSECONDS_PER_SECOND * jitter
    for place in np.argsort(paths, kind="stable"):
        if paths[place] >= best.seconds:
            counts.bounded_b1 += 1
            continue
        step = (
            int(tasks.finish(orders[place : place + 1], contended=True)[0])
            / PICOSECONDS_PER_SECOND
            * jitter
        )
        plan = plan_of(orders[place]) if step < best.seconds else None
        if plan is not None and not fits(plan):
            counts.infeasible += 1
            continue
        counts.simulated += 1
        if plan is not None:
            best.seconds, best.plan = step, plan
