"""Exact search of small problems: stage cuts, device sets, trees, microbatches and order together.

The cluster may be uniform or mixed. Best first over shapes (plans without their order): all stages
are priced once; then a closed-form bound of every shape; then, in the order of these bounds, the
longest path of every order that fits in memory; then the simulated step of those that may still
win.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict
from functools import lru_cache, partial
from math import inf, prod

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.straggler_jitter import jitter_factor_of_devices
from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.exact.enumerate_forward_backward_orders import num_orders, pipeline_orders
from shardwright.search.exact.exact_space import ExactSpace, Partition, partitions, stage_trees
from shardwright.search.exact.find_exact_multi_lane import search_lanes
from shardwright.search.exact.lower_candidate_stages_to_tasks_without_order import (
    Messages,
    plan_of_stages,
    shape_tasks,
)
from shardwright.search.exact.price_one_stage_under_split_tree import (
    StageOption,
    options_in_one_plan,
)
from shardwright.search.exact.search_shapes_best_first_then_pipeline_orders import (
    Best,
    best_first,
    run_orders,
)
from shardwright.search.exact.stage_choices_and_bounds import (
    NEVER,
    StageChoices,
    StagePrices,
    member_counts,
    shape_bounds,
)
from shardwright.search.exact.stage_of_block_range import chain_blocks
from shardwright.search.grid.find_best_grid import problem_text
from shardwright.search.optimality_certificate import Certificate, Counts, assert_sound
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_time_limit import Limit, Stops, limit_of, progress_text
from shardwright.search.universal_time_bound import universal_seconds
from shardwright.simulator.simulate_plan import fits_hosts
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricedPartition:
    """A partition with the priced choices of its stages and the bounds of its shapes.

    Args:
        bounds: (shapes,) seconds that no order of a shape can beat; inf = does not fit in memory.
        jitter: jitter factor of the devices that the partition uses.
    """

    partition: Partition
    choices: tuple[StageChoices, ...]
    bounds: FloatArray
    jitter: float

    def options(self, shape: int) -> tuple[StageOption, ...]:
        """Stage options, one a stage, of the shape with number `shape`."""
        places = np.unravel_index(shape, tuple(len(c.options) for c in self.choices))
        return options_in_one_plan(
            tuple(c.options[int(i)] for c, i in zip(self.choices, places, strict=True))
        )

    def rooms(self, shape: int) -> tuple[int, ...]:
        """Most microbatches in flight that fit in memory, for each stage of a shape."""
        return tuple(option.room for option in self.options(shape))


def find_exact(
    problem: Problem,
    space: ExactSpace,
    *,
    time_limit_s: float = float("inf"),
    stops: Stops | None = None,
    prices: StagePrices | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[None]:
    """Certified plan of `space` that fits with the least simulated step; InfeasibleError if none.

    Past `time_limit_s` (and with at least one simulated plan) the best plan so far is returned,
    with the least bound of the remaining members. Members that were not evaluated count as bounded
    then.

    Args:
        stops: stop point of an earlier search, to repeat it.
        prices: stages already priced for this problem and space.

    Raises:
        OutOfTimeError: the limit passed before any plan was found.
        InfeasibleError: no member fits in memory.
        StrategyError: the model is no chain, or shares weights between blocks.
    """
    begun = time.monotonic()
    limit = limit_of(time_limit_s, stop_at=stops.search if stops else None)
    counts, best = Counts(), Best()
    messages: Messages = {}
    prices = prices or StagePrices(problem=problem, space=space)
    ranked, unpriced = _priced_partitions(problem, space, prices, counts, limit, progress)
    lower = universal_seconds(problem) if unpriced else inf
    queue = [
        (number, shape)
        for number, priced in enumerate(ranked)
        for shape in range(len(priced.bounds))
    ]
    bounds = np.concatenate([np.zeros(0), *(priced.bounds for priced in ranked)])

    def evaluate(place: int) -> None:
        """Evaluate the shape at a place of the queue."""
        number, shape = queue[place]
        _evaluate_shape(
            problem, space, ranked[number], shape, best=best, counts=counts, messages=messages
        )

    unevaluated, lower = best_first(
        bounds,
        evaluate,
        best=best,
        floor_s=lower,
        limit=limit,
        words="run orders",
        progress=progress,
    )
    for at in unevaluated:
        priced = ranked[queue[at][0]]
        live, fitting = _orders_that_fit(
            len(priced.choices), priced.partition.microbatches, priced.rooms(int(queue[at][1]))
        )
        counts.infeasible += live - len(fitting)
        counts.bounded_b0 += len(fitting)
    if space.lanes > 1:
        floor = universal_seconds(problem)
        lower = min(
            lower,
            search_lanes(
                problem,
                space,
                best=best,
                counts=counts,
                floor_s=floor,
                limit=limit,
                progress=progress,
            ),
        )
    if best.plan is None:
        raise InfeasibleError(
            f"none of {counts.enumerated} plans fits in memory",
            hint="more or larger devices, a smaller model, or fewer samples a microbatch",
        )
    return GeneralAnswer(
        strategy=best.plan,
        certificate=_certificate(problem, space, best.seconds, counts, lower, limit),
        detail=None,
        search_time_s=time.monotonic() - begun,
        waited=limit.waited,
    )


def _priced_partitions(
    problem: Problem,
    space: ExactSpace,
    prices: StagePrices,
    counts: Counts,
    limit: Limit,
    progress: Progress | None,
) -> tuple[list[_PricedPartition], bool]:
    """Price every partition; return bounded partitions, and True if time ran out.

    Illegal members and duplicates are added to `counts`.
    """
    result: list[_PricedPartition] = []
    timed_out = False
    all_partitions = list(partitions(problem, space, blocks=chain_blocks(problem)))
    for number, partition in enumerate(all_partitions):
        if progress is not None:
            progress(
                progress_text("price stages", best_s=inf, lower_s=0.0, limit=limit),
                number,
                len(all_partitions),
            )
        timed_out = timed_out or limit.ends(found=any((p.bounds < inf).any() for p in result))
        if timed_out:
            trees = (sum(1 for _ in stage_trees(devices, space)) for devices in partition.devices)
            unpriced = prod(trees) * num_orders(len(partition.ends), partition.microbatches)
            counts.enumerated += unpriced
            counts.bounded_b0 += unpriced
            continue
        choices = prices.choices(partition)
        members = member_counts(choices, partition.microbatches)
        counts.enumerated += members.enumerated
        counts.illegal += members.illegal
        counts.duplicates += members.duplicates
        factor, bounds = (
            jitter_factor_of_devices(problem, partition.working),
            shape_bounds(choices, partition.microbatches).ravel(),
        )
        seconds = np.where(bounds < NEVER, bounds / PICOSECONDS_PER_SECOND * factor, inf)
        result.append(
            _PricedPartition(partition=partition, choices=choices, bounds=seconds, jitter=factor)
        )
    return result, timed_out


@lru_cache(maxsize=4096)
def _orders_that_fit(
    stages: int, microbatches: int, rooms: tuple[int, ...]
) -> tuple[int, IntArray]:
    """Number of orders without deadlock, and those whose microbatches in flight fit in `rooms`."""
    orders, peaks = pipeline_orders(stages, microbatches)
    return len(orders), orders[(peaks <= np.array(rooms)).all(axis=1)]


def _evaluate_shape(
    problem: Problem,
    space: ExactSpace,
    priced: _PricedPartition,
    shape: int,
    *,
    best: Best,
    counts: Counts,
    messages: Messages,
) -> None:
    """Evaluate all orders of a shape: longest paths, then simulations of orders below the best."""
    options, microbatches = priced.options(shape), priced.partition.microbatches
    num_live, orders = _orders_that_fit(len(options), microbatches, tuple(o.room for o in options))
    counts.infeasible += num_live - len(orders)
    tasks = shape_tasks(
        problem, options, microbatches=microbatches, shards=space.shards, messages=messages
    )

    def plan_of(order: IntArray) -> Plan:
        """The plan of the shape under an order."""
        return plan_of_stages(
            problem, options, microbatches=microbatches, order=order, shards=space.shards
        )

    run_orders(
        tasks,
        orders,
        jitter=priced.jitter,
        best=best,
        counts=counts,
        plan_of=plan_of,
        fits=partial(fits_hosts, problem),
    )


def _certificate(
    problem: Problem, space: ExactSpace, best_s: float, counts: Counts, lower_s: float, limit: Limit
) -> Certificate:
    """The certificate of an exact search: counts of members by fate, and a lower bound.

    Args:
        lower_s: seconds that no member without a simulation can beat.
    """
    lower_s = min(lower_s, best_s)
    universal = 1.0 - universal_seconds(problem) / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower_s, universal_gap=universal)
    return Certificate(
        space=space.text(),
        digest=hashlib.sha256(f"{space!r}\n{problem_text(problem)}".encode()).hexdigest(),
        **asdict(counts),
        best_s=best_s,
        lower_bound_s=lower_s,
        gap=(best_s - lower_s) / best_s,
        optimal=lower_s >= best_s,
        universal_gap=universal,
        stopped_at=limit.stopped_at,
    )
