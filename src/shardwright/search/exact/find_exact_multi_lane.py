"""Exact search over plans of several lanes: best first over shapes of all lanes together.

A shape (all lanes without their orders) is bounded by the time of each lane, whatever the other
lanes are. In the order of these bounds a shape is lowered like every plan, which determines its
gradient reductions and its memory. Then come the longest paths of all orders that fit, and the
simulated steps of those that may still win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import inf, prod

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.straggler_jitter import jitter_factor_of_devices
from shardwright.cost.step.stage_action_seconds import StageCosts
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import chunks_of
from shardwright.program.lowered_program import Program
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.exact.build_1f1b_rows_by_microbatches_in_flight import one_f_one_b_actions
from shardwright.search.exact.enumerate_forward_backward_orders import pipeline_orders
from shardwright.search.exact.enumerate_lane_distributions import (
    LaneDistribution,
    LaneKind,
    lane_distributions,
    num_members,
    num_multisets,
    num_unordered_choices,
)
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.lane_shapes_without_order_and_bounds import (
    LanePrices,
    LaneShape,
    LaneShapes,
)
from shardwright.search.exact.lower_candidate_stages_to_tasks_without_order import lane_of, table_of
from shardwright.search.exact.search_shapes_best_first_then_pipeline_orders import (
    Best,
    best_first,
    run_orders,
)
from shardwright.search.exact.stage_of_block_range import chain_blocks
from shardwright.search.exact.tasks_shared_by_all_orders import tasks_of_shape
from shardwright.search.optimality_certificate import Counts
from shardwright.search.search_time_limit import Limit, progress_text
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.simulate_plan import fits_hosts, lower
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PricedDistribution:
    """A distribution with the shapes of its lanes, and the bounds of all combinations.

    Args:
        bounds: (combinations of lane shapes,) seconds, flat. Lanes of one kind have shapes in
            ascending order; other combinations have inf.
        jitter: jitter factor of the devices that the distribution uses.
    """

    deal: LaneDistribution
    lanes: tuple[LaneShapes, ...]
    bounds: FloatArray
    jitter: float

    def numbers(self, flat: int) -> tuple[int, ...]:
        """Shape number of each lane in a combination."""
        return tuple(
            int(i) for i in np.unravel_index(flat, tuple(len(lane.bounds) for lane in self.lanes))
        )

    def members(self, flat: int) -> int:
        """Number of orders of a combination without deadlock; equal lanes are exchangeable."""
        numbers = self.numbers(flat)
        lane_orders = [
            (kind, number, int(lane.orders[number]))
            for kind, number, lane in zip(self.deal.kinds, numbers, self.lanes, strict=True)
        ]
        return prod(
            num_multisets(orders, len(list(equal_lanes)))
            for (*_, orders), equal_lanes in groupby(lane_orders)
        )

    def same(self, flat: int) -> tuple[int, ...]:
        """Numbers of lanes with the kind and shape of the previous lane; only orders may differ."""
        lane_shapes = list(zip(self.deal.kinds, self.numbers(flat), strict=True))
        return tuple(
            number
            for number in range(1, len(lane_shapes))
            if lane_shapes[number] == lane_shapes[number - 1]
        )


def search_lanes(
    problem: Problem,
    space: ExactSpace,
    *,
    best: Best,
    counts: Counts,
    floor_s: float,
    limit: Limit,
    progress: Progress | None,
) -> float:
    """Search plans of several lanes, updating `best`; bound in s of unevaluated ones, else inf.

    Args:
        floor_s: seconds that no plan can beat.

    Returns:
        Lower bound in seconds of the members that were not evaluated; inf if all were.
    """
    ranked, lower_s = _priced_distributions(problem, space, best, counts, floor_s, limit, progress)
    feasible = [np.flatnonzero(dealt.bounds < inf) for dealt in ranked]
    deal = np.repeat(np.arange(len(ranked)), [len(flat) for flat in feasible])
    shape = np.concatenate([np.zeros(0, dtype=np.int64), *feasible])
    bounds = np.concatenate(
        [np.zeros(0), *(dealt.bounds[flat] for dealt, flat in zip(ranked, feasible, strict=True))]
    )

    def evaluate(place: int) -> None:
        """Evaluate the combination at a place of the queue."""
        _evaluate_combination(
            problem, space, ranked[deal[place]], int(shape[place]), best=best, counts=counts
        )

    words = "run orders of several lanes"
    unevaluated, lower_s = best_first(
        bounds, evaluate, best=best, floor_s=lower_s, limit=limit, words=words, progress=progress
    )
    counts.bounded_b0 += sum(ranked[deal[at]].members(int(shape[at])) for at in unevaluated)
    return lower_s


def _priced_distributions(
    problem: Problem,
    space: ExactSpace,
    best: Best,
    counts: Counts,
    floor_s: float,
    limit: Limit,
    progress: Progress | None,
) -> tuple[list[_PricedDistribution], float]:
    """Price every distribution; return them with bounds, and a bound of unpriced members or inf.

    Illegal members and duplicates are added to `counts`.
    """
    blocks = chain_blocks(problem)
    prices = LanePrices(problem=problem, space=space, blocks=blocks)
    result: list[_PricedDistribution] = []
    all_deals = list(lane_distributions(problem, space))
    unpriced = num_members(problem, space, blocks=blocks)
    counts.enumerated += unpriced
    for number, deal in enumerate(all_deals):
        if limit.ends(found=best.plan is not None):
            counts.bounded_b0 += unpriced
            return result, floor_s
        if progress is not None:
            progress(
                progress_text("price lanes", best_s=best.seconds, lower_s=0.0, limit=limit),
                number,
                len(all_deals),
            )
        lanes = tuple(
            prices.of(devices, microbatches=kind.microbatches, samples=deal.samples)
            for kind, devices in zip(deal.kinds, deal.devices, strict=True)
        )
        shapes_of = dict(zip(deal.kinds, lanes, strict=True))
        enumerated, legal, distinct = (
            num_unordered_choices(deal.kinds, count) for count in _member_counters(shapes_of)
        )
        unpriced -= enumerated
        counts.illegal += enumerated - legal
        counts.duplicates += legal - distinct
        jitter = jitter_factor_of_devices(problem, deal.working)
        result.append(
            _PricedDistribution(
                deal=deal,
                lanes=lanes,
                bounds=_combination_bounds(deal, lanes, jitter),
                jitter=jitter,
            )
        )
    return result, inf


def _member_counters(
    shapes_of: dict[LaneKind, LaneShapes],
) -> tuple[Callable[[LaneKind], int], ...]:
    """Functions that count the members of a lane kind: all, legal, and legal without duplicates."""
    return (
        lambda k: shapes_of[k].enumerated,
        lambda k: shapes_of[k].enumerated - shapes_of[k].illegal,
        lambda k: shapes_of[k].kept,
    )


def _combination_bounds(
    deal: LaneDistribution, lanes: tuple[LaneShapes, ...], jitter: float
) -> FloatArray:
    """Flat lower bounds in seconds of lane-shape combinations; inf for a repeat by equal lanes.

    See `_PricedDistribution`.
    """
    sizes = tuple(len(lane.bounds) for lane in lanes)

    def along(values: IntArray, number: int) -> IntArray:
        """The values of one lane, shaped to broadcast along the lane's axis."""
        return values.reshape(tuple(-1 if axis == number else 1 for axis in range(len(sizes))))

    bounds = np.zeros(sizes)
    for number, lane in enumerate(lanes):
        bounds = np.maximum(bounds, along(lane.bounds, number) / PICOSECONDS_PER_SECOND * jitter)
    for number in range(1, len(sizes)):
        if deal.kinds[number] == deal.kinds[number - 1]:
            descends = along(np.arange(sizes[number - 1]), number - 1) > along(
                np.arange(sizes[number]), number
            )
            bounds = np.where(descends, inf, bounds)
    return bounds.ravel()


def _evaluate_combination(
    problem: Problem,
    space: ExactSpace,
    distribution: _PricedDistribution,
    flat: int,
    *,
    best: Best,
    counts: Counts,
) -> None:
    """Lower a combination of lane shapes, and evaluate all its orders that fit in memory."""
    deal, members = distribution.deal, distribution.members(flat)
    lanes = tuple(
        lane.shape(number)
        for lane, number in zip(distribution.lanes, distribution.numbers(flat), strict=True)
    )
    plan = plan_of_lanes(problem, space, lanes, samples=deal.samples)
    try:
        program, costs = lower(problem, plan, verified=True)
    except StrategyError:
        counts.illegal += members
        return
    orders = np.array(
        list(_fitting_orders(lanes, rooms(problem, program, costs), distribution.same(flat))),
        dtype=np.int64,
    )
    counts.infeasible += members - len(orders)
    if not len(orders):
        return
    tasks = tasks_of_shape(
        problem, program, costs, blocking=problem.runtime.blocks_sends(chunks_of(program.classes))
    )

    def plan_of(order: IntArray) -> Plan:
        """The plan of the lanes under an order."""
        return plan_of_lanes(problem, space, lanes, samples=deal.samples, order=order)

    run_orders(
        tasks,
        orders,
        jitter=distribution.jitter,
        best=best,
        counts=counts,
        plan_of=plan_of,
        fits=partial(fits_hosts, problem),
    )


def plan_of_lanes(
    problem: Problem,
    space: ExactSpace,
    lanes: tuple[LaneShape, ...],
    *,
    samples: int,
    order: IntArray | None = None,
) -> Plan:
    """The plan of these lanes, with microbatches of `samples` samples each.

    Args:
        order: (stages of all lanes, 2 m) actions; None = a lane's forwards before its backwards.
    """
    plan_lanes, tables, place = [], [], 0
    for number, shape in enumerate(lanes):
        stages, m = len(shape.options), shape.microbatches
        lane = lane_of(f"lane{number}", shape.options, samples=samples * m, microbatches=m)
        lane_order = (
            np.tile(np.arange(2 * m), (stages, 1))
            if order is None
            else order[place : place + stages]
        )
        plan_lanes.append(lane)
        tables.append(table_of(lane, shape.options, lane_order))
        place += stages
    return Plan(
        devices=problem.cluster.num_devices,
        lanes=tuple(plan_lanes),
        orders=tuple(tables),
        shards=space.shards,
    )


def rooms(problem: Problem, program: Program, costs: StageCosts) -> IntArray:
    """Most microbatches in flight that fit in memory, for each stage, lane by lane; 0 = none."""
    lanes, rows = program.plan.lanes, program.rows
    stages = [
        (lane, chunk) for lane, lane_ in enumerate(lanes) for chunk in range(len(lane_.stages))
    ]
    microbatches = np.array([lanes[lane].microbatches for lane, _ in stages], dtype=np.int64)
    result = np.zeros(len(stages), dtype=np.int64)
    for in_flight in range(int(microbatches.max()), 0, -1):
        row = [
            one_f_one_b_actions(m, min(in_flight, m))
            for m in microbatches[_stage_of_rows(program)].tolist()
        ]
        kind, microbatch = (
            np.array(column)
            for column in zip(*(action for one in row for action in one), strict=True)
        )
        in_flight_rows = replace(
            rows,
            kind=kind.astype(rows.kind.dtype),
            microbatch=microbatch.astype(rows.microbatch.dtype),
        )
        memory = plan_memory(problem, replace(program, rows=in_flight_rows), costs)
        too_large = {
            stages.index(c.families[0][:2])
            for m, c in zip(memory, program.classes, strict=True)
            if m.reserved > m.capacity
        }
        fits = np.array([stage not in too_large for stage in range(len(stages))])
        result = np.where((result == 0) & fits, np.minimum(in_flight, microbatches), result)
        if result.all():
            break
    return result


def _stage_of_rows(program: Program) -> IntArray:
    """Stage number, counted lane by lane, of each row of the order."""
    first = program.rows.row_start[:-1]
    stages: IntArray = (
        program.posts.first_stage[program.rows.lane[first]] + program.rows.chunk[first]
    )
    return stages


def _fitting_orders(
    lanes: tuple[LaneShape, ...], rooms: IntArray, same: tuple[int, ...]
) -> Iterator[IntArray]:
    """Yield (stages, 2 m) orders that fit in `rooms`, -1 as padding; `same` lanes unordered.

    Args:
        same: lanes that equal the lane before them; their order numbers never descend.
    """
    width, ends = (
        2 * max(lane.microbatches for lane in lanes),
        np.cumsum([len(lane.options) for lane in lanes]),
    )
    lane_orders: list[tuple[IntArray, BoolArray]] = []
    for lane, end in zip(lanes, ends.tolist(), strict=True):
        orders, peaks = pipeline_orders(len(lane.options), lane.microbatches)
        padded = np.full((*orders.shape[:2], width), -1, dtype=np.int64)
        padded[:, :, : orders.shape[2]] = orders
        lane_orders.append(
            (padded, np.asarray((peaks <= rooms[end - len(lane.options) : end]).all(axis=1)))
        )
    for numbers in np.ndindex(*(len(orders) for orders, _ in lane_orders)):
        descends = any(numbers[lane] < numbers[lane - 1] for lane in same)
        if not descends and all(
            fits[number] for (_, fits), number in zip(lane_orders, numbers, strict=True)
        ):
            yield np.concatenate(
                [orders[number] for (orders, _), number in zip(lane_orders, numbers, strict=True)]
            )
