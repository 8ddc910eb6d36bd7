"""Choices as columns: crossed with the values of one more axis, and left with those that keep the rules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.strategy.grid.rules import GridFacts, keeps

Columns = dict[str, IntArray]


def extended(columns: Columns, axis: str, values: Iterable[object], facts: GridFacts) -> Columns:
    """Each row with each of the `values` of `axis`, without those that break a rule which now has all that it reads."""
    listed = np.array(list(values))
    size = len(next(iter(columns.values())))
    crossed = {name: np.repeat(column, len(listed)) for name, column in columns.items()} | {axis: np.tile(listed, size)}
    return select(crossed, keeps(crossed, facts, judged=columns))


def select(columns: Columns, kept: BoolArray | IntArray | bool) -> Columns:
    """The rows that are kept; True = all."""
    return columns if kept is True else {name: column[kept] for name, column in columns.items()}


def distinct(columns: Columns) -> tuple[Columns, IntArray]:
    """The different rows, and the place of each row among them."""
    code = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
    for column in columns.values():
        values, place = np.unique(column, return_inverse=True)
        code = code * len(values) + place.reshape(-1)
    _, first, row = np.unique(code, return_index=True, return_inverse=True)
    return {name: np.ascontiguousarray(column[first]) for name, column in columns.items()}, row.reshape(-1).astype(np.int64)
