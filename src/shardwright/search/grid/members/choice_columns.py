"""Choices of axes as columns: crossed with the values of one more axis, and filtered by the
rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.strategy.grid.grid_rules import GridFacts, legal_rows

Columns = dict[str, IntArray]


def extended(columns: Columns, axis: str, values: Iterable[object], facts: GridFacts) -> Columns:
    """Each row with each of the `values` of `axis`, without those that break a rule whose axes
    are now all known.
    """
    listed = np.array(list(values))
    size = len(next(iter(columns.values())))
    crossed = {name: np.repeat(column, len(listed)) for name, column in columns.items()} | {
        axis: np.tile(listed, size)
    }
    return select(crossed, legal_rows(crossed, facts, judged=columns))


def select(columns: Columns, kept: BoolArray | IntArray | bool) -> Columns:
    """The rows where `kept` is True."""
    return columns if kept is True else {name: column[kept] for name, column in columns.items()}


def distinct(columns: Columns) -> tuple[Columns, IntArray]:
    """The distinct rows, sorted with the first column first, and the place of each row among
    them.
    """
    first, row = first_of_each(columns)
    return {name: np.ascontiguousarray(column[first]) for name, column in columns.items()}, row


def first_of_each(columns: Columns) -> tuple[IntArray, IntArray]:
    """Place of the first occurrence of each distinct row of non-negative integers, in sorted
    order, and each row's place among these.
    """
    codes, count = _codes(columns)
    if count > _LARGEST_TABLE:
        _, first, row = np.unique(codes, return_index=True, return_inverse=True)
        return first, row.reshape(-1).astype(np.int64)
    # The last one written stays: from behind, the first.
    met = np.full(count, -1, dtype=np.int64)
    met[codes[::-1]] = np.arange(len(codes))[::-1]
    present = np.flatnonzero(met >= 0)
    first = met[present]
    met[present] = np.arange(len(present))
    return first, met[codes]


_LARGEST_TABLE: Final = 2**17


def _codes(columns: Columns) -> tuple[IntArray, int]:
    """A number for each row, in the order of the rows, and an upper bound of these numbers."""
    codes, count = np.zeros(len(next(iter(columns.values()))), dtype=np.int64), 1
    for column in columns.values():
        radix = int(column.max(initial=0)) + 1
        if count * radix > _LARGEST_TABLE:
            values, place = np.unique(column, return_inverse=True)
            column, radix = place.reshape(-1), max(len(values), 1)
        codes, count = codes * radix + column, count * radix
    return codes, count
