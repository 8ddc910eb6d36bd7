"""Cache of tables by the numbers in their rows.

Costs of blocks and meshes depend on degrees and on how groups lie, not on the caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np

from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem

T = TypeVar("T")
MOST_ROWS: Final = 2**14
"""Rows of a table that is kept: one of DeepSeek-V3's has 1 to 2 KiB in each."""
_MOST_ROWS_IN_ALL: Final = 2**17
"""Rows of all tables that are kept; the least recently used tables go first."""


class _TableCache:
    """Cache of tables that drops the least recently used when their rows exceed a limit."""

    def __init__(self) -> None:
        self._tables: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._rows, self._lock = 0, Lock()

    def find(self, key: Hashable) -> Any:
        """The table stored under `key`, marked as recently used; None if there is none."""
        with self._lock:
            if key not in self._tables:
                return None
            self._tables.move_to_end(key)
            return self._tables[key][1]

    def keep(self, key: Hashable, table: object, *, rows: int) -> None:
        """Store a table of `rows` rows; drop the least recently used tables beyond the limit."""
        with self._lock:
            if key in self._tables:
                return
            self._tables[key] = rows, table
            self._rows += rows
            while self._rows > _MOST_ROWS_IN_ALL:
                self._rows -= self._tables.popitem(last=False)[1][0]


_cache: Final = _TableCache()


def cached_table(
    make: Callable[..., T], problem: Problem, rows: DegreeRows, *, sets: int = 1, **more: Any
) -> T:
    """``make(problem, rows, **more)``, cached by the values in rows and arguments if not too long.

    The same object as before where the same function was called before.

    Args:
        make: a function of a module: compared by identity, and so is the problem.
        sets: rows that the table has of each row.
        more: arrays, compared by their numbers, and values that are compared by value. No caller
            may change the table.
    """
    if len(rows) * sets > MOST_ROWS:
        return make(problem, rows, **more)
    columns = np.stack(list(rows.columns.values()))
    more_by_value = tuple(
        [
            (name, value.tobytes() if isinstance(value, np.ndarray) else value)
            for name, value in more.items()
        ]
    )
    key = (make, Same(problem), tuple(rows.columns), columns.tobytes(), more_by_value)
    table: T | None = _cache.find(key)
    if table is None:
        table = make(problem, rows, **more)
        _cache.keep(key, table, rows=len(rows) * sets)
    return table
