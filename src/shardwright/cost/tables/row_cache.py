"""Tables that were made of the same rows before: what blocks and meshes cost depends on degrees and
on how groups lie, not on who asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np

from shardwright.cost.degree_columns import Rows
from shardwright.program.problem import Problem
from shardwright.program.same import Same

T = TypeVar("T")
MOST_ROWS: Final = 2**14
"""Rows of a table that is kept: one of DeepSeek-V3's has 1 to 2 KiB in each."""
_MOST_IN_ALL: Final = 2**17
"""Rows of all tables that are kept; those that nobody asked for longest go first."""


class _Kept:
    def __init__(self) -> None:
        self._tables: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._rows, self._lock = 0, Lock()

    def find(self, key: Hashable) -> Any:
        with self._lock:
            if key not in self._tables:
                return None
            self._tables.move_to_end(key)
            return self._tables[key][1]

    def keep(self, key: Hashable, table: object, *, rows: int) -> None:
        with self._lock:
            if key in self._tables:
                return
            self._tables[key] = rows, table
            self._rows += rows
            while self._rows > _MOST_IN_ALL:
                self._rows -= self._tables.popitem(last=False)[1][0]


_kept: Final = _Kept()


def known_table(
    make: Callable[..., T], problem: Problem, rows: Rows, *, sets: int = 1, **more: Any
) -> T:
    """``make(problem, rows, **more)``: the same object as before where the same was asked before of
    rows with the same numbers.

    Args:
        make: a function of a module: it is known by what it is, and so is the problem.
        sets: rows that the table has of each row.
        more: arrays, known by their numbers, and what equals by value. Nobody may change the table.
    """
    if len(rows) * sets > MOST_ROWS:
        return make(problem, rows, **more)
    columns = np.stack(list(rows.columns.values()))
    given = tuple(
        [
            (name, value.tobytes() if isinstance(value, np.ndarray) else value)
            for name, value in more.items()
        ]
    )
    key = (make, Same(problem), tuple(rows.columns), columns.tobytes(), given)
    found: T | None = _kept.find(key)
    if found is None:
        found = make(problem, rows, **more)
        _kept.keep(key, found, rows=len(rows) * sets)
    return found
