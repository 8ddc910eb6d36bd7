"""Best-first walk of an exact search over shapes, and over the orders of one shape by their
longest paths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.progress import Progress
from shardwright.search.certificate import Counts
from shardwright.search.exact.unordered_tasks import ShapeTasks
from shardwright.search.search_limit import Limit, progress_text
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(slots=True)
class Best:
    """The best member so far."""

    seconds: float = inf
    plan: Plan | None = None


def best_first(
    bounds: FloatArray,
    look: Callable[[int], None],
    *,
    best: Best,
    floor: float,
    limit: Limit,
    words: str,
    progress: Progress | None,
) -> tuple[IntArray, float]:
    """Look at shapes in the order of their bounds, until no other shape can be better or the time
    limit passes.

    Args:
        bounds: (shapes,) seconds that no order of a shape is below.
        look: renews `best` by the shape with that number.
        floor: seconds that no member without a bound of its own is below.
        words: what is done, for `progress`.

    Returns:
        The shapes that nobody looked at, and the seconds that no member is below which nobody
        looked at; at least those of the best if all were.
    """
    # In the order of their bounds, all shapes behind one that cannot be better have bounds at least
    # as large, so its bound holds for all of them.
    turn = np.argsort(bounds, kind="stable")
    for place, at in enumerate(turn):
        if bounds[at] >= best.seconds or limit.ends(found=best.plan is not None):
            return turn[place:], min(floor, float(bounds[at]))
        look(int(at))
        if progress is not None:
            said = progress_text(
                words, best_s=best.seconds, lower_s=min(floor, float(bounds[at])), limit=limit
            )
            progress(said, place + 1, len(turn))
    return turn[:0], floor


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
    """Compute the longest paths of all orders of a shape, then simulate those whose path is below
    the best.

    Args:
        orders: (orders, stages, 2 m) actions, as `ShapeTasks.finish` takes them.
        jitter: factor on a step, of the devices that work.
        fits: the nodes of a plan have room for what it offloads, all stages together.
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
