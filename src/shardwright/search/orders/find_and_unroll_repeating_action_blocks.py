"""Repetends: blocks of one microbatch's actions that repeat every period, as in Tessel.

Lin et al. 2024 (Tessel, HPCA, arXiv:2311.15269): find a short repeating block, prove that none
repeats faster, unroll it. No period is shorter than a rank's work on one microbatch of each lane,
so a block of that period is proven.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.order_problem import OrderProblem

STRETCHES = tuple(
    Fraction(number, 100)
    for number in (100, 101, 103, 106, 110, 115, 122, 130, 145, 165, 200, 250, 350, 500)
)
"""Periods that are tried, as multiples of the shortest possible period."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repetend:
    """A repeating block of actions: microbatch i starts i periods after microbatch 0.

    Args:
        start: (3, chunks) start of each kind of action of each chunk for microbatch 0.
        proven: True if no period is shorter.
    """

    period: int
    start: IntArray
    proven: bool


def repetends(problem: OrderProblem) -> list[Repetend]:
    """Find a repeating block for each tried period that allows one, the shortest period first."""
    shortest = int(problem.work().max()) // problem.microbatches
    blocks = []
    for stretch in STRETCHES:
        period = -(-shortest * stretch.numerator // stretch.denominator)
        start = _find_block(problem, period)
        if start is not None:
            blocks.append(Repetend(period=period, start=start, proven=period == shortest))
    return blocks


def unroll(problem: OrderProblem, repetend: Repetend) -> tuple[IntArray, IntArray]:
    """The order of all microbatches of a repetend as (codes, row_start), see `walk`."""
    chunks = problem.lanes * problem.chunks
    shape = (3, chunks, problem.microbatches)
    start = np.broadcast_to(repetend.start[:, :, None], shape) + repetend.period * np.arange(
        problem.microbatches
    )
    kind, chunk, microbatch = np.indices(shape)
    rank = problem.owner.reshape(-1)[chunk]
    # Actions of no time may start together: they are in the order of their dependencies.
    depth = np.where(kind == 0, chunk % problem.chunks, 2 * problem.chunks - chunk % problem.chunks)
    order = np.lexsort(
        tuple(column.reshape(-1) for column in (kind, depth, microbatch, start, rank))
    )
    codes = (kind * chunks + chunk).reshape(-1)[order].astype(np.int64)
    row_start = np.searchsorted(rank.reshape(-1)[order], np.arange(problem.ranks + 1)).astype(
        np.int64
    )
    return codes, row_start


def _find_block(problem: OrderProblem, period: int) -> IntArray | None:
    """Start times of one microbatch of each lane in a block of a given period; None = no fit.

    Each action is as early as its inputs and its rank's other actions modulo the period let it.
    """
    chunks = problem.lanes * problem.chunks
    times = [
        array.reshape(-1).tolist() for array in (problem.forward, problem.input, problem.weight)
    ]
    owner = problem.owner.reshape(-1).tolist()
    busy: list[list[tuple[int, int]]] = [[] for _ in range(problem.ranks)]
    left = [
        sorted(times[kind][c] for c in range(chunks) if owner[c] == rank for kind in range(3))
        for rank in range(problem.ranks)
    ]
    start = np.zeros((3, chunks), np.int64)

    def place_action(kind: int, chunk: int, earliest: int) -> int:
        """Place an action at its first free start; return its end, or raise `_NoRoomError`."""
        rank, lasts = owner[chunk], times[kind][chunk]
        left[rank].remove(lasts)
        at = _first_free_start(busy[rank], lasts, earliest, period, left[rank])
        if at < 0:
            raise _NoRoomError
        busy[rank].append((at % period, lasts))
        start[kind, chunk] = at
        return at + lasts

    try:
        ends = [0] * problem.lanes
        for step in range(2 * problem.chunks):
            for lane in range(problem.lanes):
                down = step < problem.chunks
                c = step if down else 2 * problem.chunks - 1 - step
                end = place_action(0 if down else 1, lane * problem.chunks + c, ends[lane])
                wait = problem.send_forward[lane, c] if down and c + 1 < problem.chunks else 0
                wait = problem.send_backward[lane, c] if not down and c else wait
                ends[lane] = end + int(wait)
        for chunk in range(chunks):
            place_action(2, chunk, int(start[1, chunk]) + times[1][chunk])
    except _NoRoomError:
        return None
    return start


class _NoRoomError(Exception):
    """A block of this period does not fit."""


def _first_free_start(
    busy: list[tuple[int, int]],
    lasts: int,
    earliest: int,
    period: int,
    remaining_lengths: list[int],
) -> int:
    """First start from `earliest` that overlaps no busy interval modulo the period; -1 = none.

    It must leave room for the remaining lengths.
    """
    marks = {earliest}
    for at, length in busy:
        for edge in (at + length, at - lasts):
            marks.add(earliest + (edge - earliest) % period)
    for start in sorted(marks):
        trial = [*busy, (start % period, lasts)]
        gaps = _free_gaps(trial, period)
        if gaps is not None and _fits_into_gaps(gaps, remaining_lengths):
            return start
    return -1


def _free_gaps(busy: list[tuple[int, int]], period: int) -> list[int] | None:
    """Lengths of the free gaps between intervals on a circle; None if two intervals overlap."""
    ordered = sorted((at, length) for at, length in busy if length)
    if not ordered:
        return [period]
    gaps = []
    for (at, length), (following, _) in zip(
        ordered, [*ordered[1:], (ordered[0][0] + period, 0)], strict=True
    ):
        if at + length > following:
            return None
        gaps.append(following - at - length)
    return gaps


def _fits_into_gaps(gaps: list[int], lengths: list[int]) -> bool:
    """True if all lengths fit into the gaps, the longest first into the tightest gap."""
    room = sorted(gap for gap in gaps if gap)
    for length in reversed(lengths):
        if not length:
            continue
        fitting = next((i for i, gap in enumerate(room) if gap >= length), None)
        if fitting is None:
            return False
        rest = room.pop(fitting) - length
        if rest:
            room.append(rest)
            room.sort()
    return True
