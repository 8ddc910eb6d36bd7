"""Exact search over plans of several lanes: best first over shapes of all lanes together, then over
their orders.

A shape (what every lane is, but for the orders) is bounded by what each of its lanes takes whatever
the others are. In the order of these bounds it is lowered as every plan is, which says its sums of
gradients and its memory; then come the longest paths of all orders that fit, and the simulated
steps of those that may still win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import inf, prod

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.longest_path import jitter_factor_of_devices
from shardwright.cost.step.stage_costs import StageCosts
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.plan_program import Program, chunks_of
from shardwright.program.problem import Problem
from shardwright.progress import Progress
from shardwright.search.certificate import Counts
from shardwright.search.exact.best_first_shapes import Best, best_first, run_orders
from shardwright.search.exact.deal_devices import (
    Deal,
    LaneKind,
    choices,
    deals,
    num_members,
    unordered,
)
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.lane_shapes import LanePrices, LaneShape, LaneShapes
from shardwright.search.exact.plan_shapes import lane_of, table_of
from shardwright.search.exact.stage_options import chain_blocks, flights
from shardwright.search.exact.static_orders import pipeline_orders
from shardwright.search.exact.unordered_tasks import tasks_of_shape
from shardwright.search.search_limit import Limit, progress_text
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.plan_simulation import fits_hosts, lower
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Dealt:
    """A distribution with the shapes of its lanes, and the bounds of all of them together.

    Args:
        bounds: (shapes of all lanes) seconds, flat; of lanes of one kind the shapes do not fall,
            others have inf.
        jitter: of the devices.
    """

    deal: Deal
    lanes: tuple[LaneShapes, ...]
    bounds: FloatArray
    jitter: float

    def numbers(self, flat: int) -> tuple[int, ...]:
        """The number of each lane's shape."""
        return tuple(
            int(i) for i in np.unravel_index(flat, tuple(len(lane.bounds) for lane in self.lanes))
        )

    def members(self, flat: int) -> int:
        """Number of orders of one shape that do not deadlock; lanes that are alike count in any
        order once.
        """
        numbers = self.numbers(flat)
        each = [
            (kind, number, int(lane.orders[number]))
            for kind, number, lane in zip(self.deal.kinds, numbers, self.lanes, strict=True)
        ]
        return prod(choices(orders, len(list(alike))) for (*_, orders), alike in groupby(each))

    def same(self, flat: int) -> tuple[int, ...]:
        """Lanes that equal the previous one except for their order."""
        each = list(zip(self.deal.kinds, self.numbers(flat), strict=True))
        return tuple(number for number in range(1, len(each)) if each[number] == each[number - 1])


def search_lanes(
    problem: Problem,
    space: ExactSpace,
    *,
    best: Best,
    counts: Counts,
    floor: float,
    limit: Limit,
    progress: Progress | None,
) -> float:
    """Search the plans of two lanes or more, adding to `best` and `counts`; returns a lower bound
    in seconds of those that were not looked at.

    Args:
        floor: seconds that no plan whatever is below.

    Returns:
        Seconds that no plan which was not looked at is below; at least those of the best if all
        were looked at.
    """
    ranked, lower_s = _dealt(problem, space, best, counts, floor, limit, progress)
    some = [np.flatnonzero(one.bounds < inf) for one in ranked]
    deal = np.repeat(np.arange(len(ranked)), [len(flat) for flat in some])
    shape = np.concatenate([np.zeros(0, dtype=np.int64), *some])
    bounds = np.concatenate(
        [np.zeros(0), *(one.bounds[flat] for one, flat in zip(ranked, some, strict=True))]
    )

    def look(at: int) -> None:
        _refine(problem, space, ranked[deal[at]], int(shape[at]), best=best, counts=counts)

    words = "run orders of several lanes"
    left, lower_s = best_first(
        bounds, look, best=best, floor=lower_s, limit=limit, words=words, progress=progress
    )
    counts.bounded_b0 += sum(ranked[deal[at]].members(int(shape[at])) for at in left)
    return lower_s


def _dealt(
    problem: Problem,
    space: ExactSpace,
    best: Best,
    counts: Counts,
    floor: float,
    limit: Limit,
    progress: Progress | None,
) -> tuple[list[_Dealt], float]:
    """Every distribution with bounds of its shapes, illegal members and duplicates counted; and
    a lower bound in seconds of those not priced.
    """
    blocks = chain_blocks(problem)
    prices = LanePrices(problem=problem, space=space, blocks=blocks)
    result: list[_Dealt] = []
    whole = list(deals(problem, space))
    left = num_members(problem, space, blocks=blocks)
    counts.enumerated += left
    for turn, deal in enumerate(whole):
        if limit.ends(found=best.plan is not None):
            counts.bounded_b0 += left
            return result, floor
        if progress is not None:
            progress(
                progress_text("price lanes", best_s=best.seconds, lower_s=0.0, limit=limit),
                turn,
                len(whole),
            )
        lanes = tuple(
            prices.of(devices, microbatches=kind.microbatches, samples=deal.samples)
            for kind, devices in zip(deal.kinds, deal.devices, strict=True)
        )
        of = dict(zip(deal.kinds, lanes, strict=True))
        every, legal, kept = (unordered(deal.kinds, each) for each in _totals(of))
        left -= every
        counts.illegal += every - legal
        counts.duplicates += legal - kept
        jitter = jitter_factor_of_devices(problem, deal.working)
        result.append(
            _Dealt(deal=deal, lanes=lanes, bounds=_bounds(deal, lanes, jitter), jitter=jitter)
        )
    return result, inf


def _totals(of: dict[LaneKind, LaneShapes]) -> tuple[Callable[[LaneKind], int], ...]:
    """Numbers of members of a lane of some kind: all, legal ones, and legal ones without
    duplicates.
    """
    return (
        lambda k: of[k].enumerated,
        lambda k: of[k].enumerated - of[k].illegal,
        lambda k: of[k].kept,
    )


def _bounds(deal: Deal, lanes: tuple[LaneShapes, ...], jitter: float) -> FloatArray:
    """Bounds of the shapes of all lanes together; see `_Dealt`."""
    sizes = tuple(len(lane.bounds) for lane in lanes)

    def along(values: IntArray, number: int) -> IntArray:
        return values.reshape(tuple(-1 if axis == number else 1 for axis in range(len(sizes))))

    found = np.zeros(sizes)
    for number, lane in enumerate(lanes):
        found = np.maximum(found, along(lane.bounds, number) / PICOSECONDS_PER_SECOND * jitter)
    for number in range(1, len(sizes)):
        if deal.kinds[number] == deal.kinds[number - 1]:
            falls = along(np.arange(sizes[number - 1]), number - 1) > along(
                np.arange(sizes[number]), number
            )
            found = np.where(falls, inf, found)
    return found.ravel()


def _refine(
    problem: Problem, space: ExactSpace, dealt: _Dealt, flat: int, *, best: Best, counts: Counts
) -> None:
    """Compute the longest paths of all orders of a shape, then simulate those whose path is
    below the best.
    """
    deal, members = dealt.deal, dealt.members(flat)
    lanes = tuple(
        lane.shape(number) for lane, number in zip(dealt.lanes, dealt.numbers(flat), strict=True)
    )
    plan = plan_of_lanes(problem, space, lanes, samples=deal.samples)
    try:
        program, costs = lower(problem, plan, verified=True)
    except StrategyError:
        counts.illegal += members
        return
    orders = np.array(
        list(_orders(lanes, rooms(problem, program, costs), dealt.same(flat))), dtype=np.int64
    )
    counts.infeasible += members - len(orders)
    if not len(orders):
        return
    tasks = tasks_of_shape(
        problem, program, costs, blocking=problem.runtime.blocks_sends(chunks_of(program.classes))
    )

    def plan_of(order: IntArray) -> Plan:
        return plan_of_lanes(problem, space, lanes, samples=deal.samples, order=order)

    run_orders(
        tasks,
        orders,
        jitter=dealt.jitter,
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
        order: (stages of all lanes, 2 m) actions; None = all forwards of a lane before its
            backwards.
    """
    written, tables, place = [], [], 0
    for number, shape in enumerate(lanes):
        stages, m = len(shape.options), shape.microbatches
        lane = lane_of(f"lane{number}", shape.options, samples=samples * m, microbatches=m)
        own = (
            np.tile(np.arange(2 * m), (stages, 1))
            if order is None
            else order[place : place + stages]
        )
        written.append(lane)
        tables.append(table_of(lane, shape.options, own))
        place += stages
    return Plan(
        devices=problem.cluster.num_devices,
        lanes=tuple(written),
        orders=tuple(tables),
        shards=space.shards,
    )


def rooms(problem: Problem, program: Program, costs: StageCosts) -> IntArray:
    """Most microbatches in flight of each stage, lane by lane, with which no device exceeds its
    memory; 0 = not even one fits.
    """
    lanes, rows = program.plan.lanes, program.rows
    stages = [(lane, chunk) for lane, own in enumerate(lanes) for chunk in range(len(own.stages))]
    most = np.array([lanes[lane].microbatches for lane, _ in stages], dtype=np.int64)
    found = np.zeros(len(stages), dtype=np.int64)
    for flying in range(int(most.max()), 0, -1):
        row = [flights(m, min(flying, m)) for m in most[_stage_of_rows(program)].tolist()]
        kind, microbatch = (
            np.array(column)
            for column in zip(*(action for one in row for action in one), strict=True)
        )
        flown = replace(
            rows,
            kind=kind.astype(rows.kind.dtype),
            microbatch=microbatch.astype(rows.microbatch.dtype),
        )
        memory = plan_memory(problem, replace(program, rows=flown), costs)
        large = {
            stages.index(c.families[0][:2])
            for m, c in zip(memory, program.classes, strict=True)
            if m.reserved > m.capacity
        }
        fits = np.array([stage not in large for stage in range(len(stages))])
        found = np.where((found == 0) & fits, np.minimum(flying, most), found)
        if found.all():
            break
    return found


def _stage_of_rows(program: Program) -> IntArray:
    """The stage, counted lane by lane, of each row of the order."""
    first = program.rows.row_start[:-1]
    found: IntArray = (
        program.posts.first_stage[program.rows.lane[first]] + program.rows.chunk[first]
    )
    return found


def _orders(
    lanes: tuple[LaneShape, ...], rooms: IntArray, same: tuple[int, ...]
) -> Iterator[IntArray]:
    """Orders of all lanes, each (stages, 2 m), whose microbatches in flight fit in `rooms`.

    Args:
        same: lanes that are as the one before them: their orders do not come before its.
    """
    width, ends = (
        2 * max(lane.microbatches for lane in lanes),
        np.cumsum([len(lane.options) for lane in lanes]),
    )
    every: list[tuple[IntArray, BoolArray]] = []
    for lane, end in zip(lanes, ends.tolist(), strict=True):
        orders, peaks = pipeline_orders(len(lane.options), lane.microbatches)
        wide = np.full((*orders.shape[:2], width), -1, dtype=np.int64)
        wide[:, :, : orders.shape[2]] = orders
        every.append(
            (wide, np.asarray((peaks <= rooms[end - len(lane.options) : end]).all(axis=1)))
        )
    for numbers in np.ndindex(*(len(orders) for orders, _ in every)):
        falls = any(numbers[lane] < numbers[lane - 1] for lane in same)
        if not falls and all(
            fits[number] for (_, fits), number in zip(every, numbers, strict=True)
        ):
            yield np.concatenate(
                [orders[number] for (orders, _), number in zip(every, numbers, strict=True)]
            )
