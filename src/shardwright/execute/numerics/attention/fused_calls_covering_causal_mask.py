"""Decomposition of the causal mask into rectangles of query and key rows for fused kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, pairwise

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, Interval, count


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Rows of queries and keys that one fused kernel call covers.

    Each query sees all of the keys or, if `causal`, the keys up to its own row.
    """

    queries: Interval
    keys: Interval
    causal: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive positions `low` to `high`, from row `first` on."""

    low: int
    high: int
    first: int

    @property
    def end(self) -> int:
        """Row after the last row of the run."""
        return self.first + self.high - self.low


@lru_cache(maxsize=4096)
def kernel_calls(queries: Indices, keys: Indices, *, causal: bool) -> tuple[KernelCall, ...]:
    """Fused kernel calls that cover every visible (query, key) pair exactly once, and no other.

    Query and key positions are cut at each other's borders, so that two runs have the same
    positions or share none. Consecutive runs of queries whose own positions are consecutive runs of
    keys form one diagonal. A query sees every run outside its diagonal entirely or not at all.

    Worked: queries at 0-1 and 6-7 see keys at 0-1, 6-7 and 2-5, in that order, in two calls: all
    queries the first four keys, causally, and the last two queries all of the last four keys.

    Args:
        queries, keys: positions in the order of their rows; runs in any order, each position once.
        causal: a query sees no later key; else it sees all.

    Left out: windows, and all other masks that hide a key from a later query.
    """
    rows, columns = count(queries), count(keys)
    if not rows or not columns:
        return ()
    if not causal:
        return (KernelCall((0, rows), (0, columns), False),)
    query_runs, key_runs = _runs_cut_at(queries, keys), _runs_cut_at(keys, queries)
    diagonals = list(_diagonals(query_runs, key_runs))
    rectangles = [
        KernelCall(
            (query_runs[a].first, query_runs[b].end),
            (key_runs[m].first, key_runs[m + b - a].end),
            True,
        )
        for a, b, m in diagonals
    ]
    on_diagonal = {i: range(m, m + i - a + 1) for a, b, m in diagonals for i in range(a, b + 1)}
    full_rows = [
        tuple(_fully_visible_keys(rows, key_runs, on_diagonal.get(i, range(0))))
        for i, rows in enumerate(query_runs)
    ]
    for slices, group in groupby(range(len(query_runs)), key=full_rows.__getitem__):
        run_numbers = list(group)
        rectangles += [
            KernelCall(
                (query_runs[run_numbers[0]].first, query_runs[run_numbers[-1]].end), rows, False
            )
            for rows in slices
        ]
    return tuple(rectangles)


def _runs_cut_at(runs: Indices, borders_of: Indices) -> list[_Run]:
    """Runs of consecutive positions, cut wherever an interval of `borders_of` begins or ends."""
    borders = sorted({border for other in borders_of for border in other})
    cut_runs, first_row = [], 0
    for low, high in runs:
        ends = [low, *(border for border in borders if low < border < high), high]
        cut_runs += [_Run(a, b, first_row + a - low) for a, b in pairwise(ends) if a < b]
        first_row += high - low
    return cut_runs


def _diagonals(query_runs: list[_Run], key_runs: list[_Run]) -> Iterator[tuple[int, int, int]]:
    """Run numbers (first query, last query, first key) of each causal square of equal positions.

    A single position is no diagonal, because it sees itself entirely.
    """
    places = {run.low: number for number, run in enumerate(key_runs)}
    start: tuple[int, int] | None = None
    for i, run in enumerate(query_runs):
        place = places.get(run.low)
        if start is not None and (
            place != start[1] + i - start[0] or run.low < query_runs[i - 1].high
        ):
            yield start[0], i - 1, start[1]
            start = None
        if (
            start is None
            and place is not None
            and (run.high - run.low > 1 or _continues(query_runs, key_runs, i, place))
        ):
            start = i, place
    if start is not None:
        yield start[0], len(query_runs) - 1, start[1]


def _continues(query_runs: list[_Run], key_runs: list[_Run], i: int, place: int) -> bool:
    """True if after query run i and key run `place` the next runs begin at one later position."""
    if i + 1 == len(query_runs) or place + 1 == len(key_runs):
        return False
    return query_runs[i].high <= query_runs[i + 1].low == key_runs[place + 1].low


def _fully_visible_keys(
    query_run: _Run, key_runs: list[_Run], on_diagonal: range
) -> Iterator[Interval]:
    """Row ranges of keys at or before a run's first query, except the runs on its diagonal."""
    start: tuple[int, int] | None = None
    for number, key_run in enumerate(key_runs):
        if key_run.high - 1 > query_run.low or number in on_diagonal:
            continue
        if start is not None and start[1] == key_run.first:
            start = start[0], key_run.end
            continue
        if start is not None:
            yield start
        start = key_run.first, key_run.end
    if start is not None:
        yield start
