"""Orders that a search found, and their conversion between action codes and action tables."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray, distinct
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.schedules.action_order_arrays import ActionTable, B, F, I, W
from shardwright.search.orders.order_makespan_and_peak_memory import levels, walk
from shardwright.search.orders.order_problem import OrderProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrder:
    """The best order that a search found, with the proven lower bound.

    Args:
        table: the order; F, I and W, or B where W takes no time.
        makespan: its end, in the problem's unit of time.
        lower_bound: lower bound on the makespan of every order that fits in memory.
        classical_bound: the same for unlimited memory (`OrderBounds.classical`).
        peak: peak memory of each rank.
        method: name of the method that found the order.
    """

    table: ActionTable
    makespan: int
    lower_bound: int
    classical_bound: int
    peak: tuple[int, ...]
    method: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodedOrder:
    """An order as action codes, with its makespan and memory peaks.

    Args:
        codes: action codes of all rows, one row after another (see `walk`).
        row_start: (ranks + 1,) start of each rank's row.
        makespan: -1 if the order deadlocks.
        peak: (ranks,) peak memory of each rank.
    """

    codes: IntArray
    row_start: IntArray
    makespan: int
    peak: IntArray
    method: str


def evaluate_order(
    problem: OrderProblem, columns: IntArray, codes: IntArray, row_start: IntArray, *, method: str
) -> CodedOrder:
    """Run an order of action codes for its makespan (-1 = deadlock) and (ranks,) memory peaks.

    Args:
        columns: table of `problem_arrays`.
    """
    kinds = 3 * columns.shape[1]
    end = np.zeros((kinds, problem.microbatches), np.int64)
    at, free, count = (
        np.zeros(problem.ranks, np.int64),
        np.zeros(problem.ranks, np.int64),
        np.zeros(kinds, np.int64),
    )
    makespan = int(walk(columns, codes, row_start, problem.microbatches, end, at, free, count))
    return CodedOrder(
        codes=codes,
        row_start=row_start,
        makespan=makespan,
        peak=levels(columns, codes, row_start),
        method=method,
    )


def codes_of_table(problem: OrderProblem, table: ActionTable) -> tuple[IntArray, IntArray]:
    """Rows of an action table as (codes, row_start), with B as I and W.

    Microbatches of a chunk are in the order of their first action.
    """
    chunks = problem.lanes * problem.chunks
    place = table.lane.astype(np.int64) * problem.chunks + table.chunk
    kind = np.where(table.kind == B, I, table.kind).astype(np.int64)
    doubled = np.where(table.kind == B, 2, 1)
    codes = np.repeat(kind * chunks + place, doubled)
    ends = np.concatenate(([0], np.cumsum(doubled)))
    second = ends[1:][table.kind == B] - 1
    codes[second] = W * chunks + place[table.kind == B]
    return codes, ends[table.row_start].astype(np.int64)


def table_of_codes(problem: OrderProblem, order: CodedOrder) -> ActionTable:
    """The action table of an order; I and a W that takes no time become B."""
    chunks = problem.lanes * problem.chunks
    codes, row_start = order.codes, order.row_start
    turn = np.empty_like(codes)
    for code in distinct(codes):
        mine = codes == code
        turn[mine] = np.arange(int(mine.sum()))
    kind, place = codes // chunks, codes % chunks
    timeless = (problem.weight.reshape(-1) == 0)[place]
    # A weight gradient of no time may be anywhere after its input gradient: directly after it, it
    # frees the most memory and delays nothing.
    kept = ~(timeless & (kind == W))
    new_kind = np.where(timeless & (kind == I), B, kind)
    sizes = np.add.reduceat(kept, row_start[:-1])
    return ActionTable(
        num_ranks=problem.ranks,
        num_chunks=problem.chunks,
        num_microbatches=problem.microbatches,
        row_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        kind=new_kind[kept].astype(np.int8),
        chunk=(place % problem.chunks)[kept].astype(np.int32),
        microbatch=turn[kept].astype(np.int32),
        lane=(place // problem.chunks)[kept].astype(np.int8),
        slice=np.zeros(int(kept.sum()), np.int32),
    )


def one_microbatch_at_a_time(problem: OrderProblem) -> tuple[IntArray, IntArray]:
    """(codes, row_start) of the order that ends one microbatch before the next begins.

    It fits if any order fits.
    """
    chunks = problem.lanes * problem.chunks
    owner = problem.owner.reshape(-1)
    rows: list[list[int]] = [[] for _ in range(problem.ranks)]
    for lane in range(problem.lanes):
        own = range(lane * problem.chunks, (lane + 1) * problem.chunks)
        for chunk in own:
            rows[owner[chunk]].append(F * chunks + chunk)
        for chunk in reversed(own):
            rows[owner[chunk]] += [I * chunks + chunk, W * chunks + chunk]
    row_start = np.concatenate(([0], np.cumsum([len(row) * problem.microbatches for row in rows])))
    return np.concatenate(
        [np.tile(np.array(row, np.int64), problem.microbatches) for row in rows]
    ), row_start.astype(np.int64)
