"""Combinations of axis values as columns: extended by one more axis, filtered by the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.strategy.grid.grid_rule_violations import legal_rows
from shardwright.strategy.grid.grid_rules import GridFacts

Columns = dict[str, IntArray]


def extended(columns: Columns, axis: str, values: Iterable[object], facts: GridFacts) -> Columns:
    """Cross every row with the `values` of `axis`; drop rows that break a rule on known axes."""
    axis_values = np.array(list(values))
    size = len(next(iter(columns.values())))
    crossed = {name: np.repeat(column, len(axis_values)) for name, column in columns.items()} | {
        axis: np.tile(axis_values, size)
    }
    return select(crossed, legal_rows(crossed, facts, judged=columns))


def ring_gather(columns: Columns) -> IntArray:
    """(rows,) values of `gather`, with 0 where context parallelism has no ring (ulysses = cp)."""
    return np.where(columns["ulysses"] == columns["cp"], 0, columns["gather"])


def select(columns: Columns, kept: BoolArray | IntArray | bool) -> Columns:
    """The rows of all columns where `kept` is True, or at the row numbers in `kept`."""
    return columns if kept is True else {name: column[kept] for name, column in columns.items()}


def distinct(columns: Columns) -> tuple[Columns, IntArray]:
    """The distinct rows, sorted by the first column first, and each row's place among them."""
    first, row = first_of_each(columns)
    return {name: np.ascontiguousarray(column[first]) for name, column in columns.items()}, row


def first_of_each(columns: Columns) -> tuple[IntArray, IntArray]:
    """Index of each distinct row's first occurrence, in sorted order; each row's place among these.

    The columns hold non-negative integers.
    """
    codes, count = _row_codes(columns)
    if count > _LARGEST_TABLE:
        _, first, row = np.unique(codes, return_index=True, return_inverse=True)
        return first, row.reshape(-1).astype(np.int64)
    # The last assignment stays; in reversed order that is the first occurrence.
    first_place = np.full(count, -1, dtype=np.int64)
    first_place[codes[::-1]] = np.arange(len(codes))[::-1]
    present = np.flatnonzero(first_place >= 0)
    first = first_place[present]
    first_place[present] = np.arange(len(present))
    return first, first_place[codes]


_LARGEST_TABLE: Final = 2**17


def _row_codes(columns: Columns) -> tuple[IntArray, int]:
    """One integer for each row, in rows' lexicographic order, and their exclusive upper bound."""
    codes, count = np.zeros(len(next(iter(columns.values()))), dtype=np.int64), 1
    for column in columns.values():
        radix = int(column.max(initial=0)) + 1
        if count * radix > _LARGEST_TABLE:
            values, place = np.unique(column, return_inverse=True)
            column, radix = place.reshape(-1), max(len(values), 1)
        codes, count = codes * radix + column, count * radix
    return codes, count
