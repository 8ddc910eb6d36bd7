"""Error limits of groups of rows (bars), and whether the prediction errors keep within them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    MeasuredRun,
    PredictionT,
    RunT,
)
from shardwright.validation.errors.prediction_errors import (
    ErrorStatistics,
    JudgedRow,
    error_statistics,
    mean_error_of_all,
)
from shardwright.validation.tables.row_conditions import cells_of, selected
from shardwright.validation.tables.table_facts_from_toml import ErrorLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class BarResult:
    """Prediction errors of a group of rows in one kind of fold, with the group's error limits.

    Args:
        errors: None if the group has no rows.
        limits: statistic -> largest error; empty = none in this kind of fold.
    """

    name: str
    fold: str
    errors: ErrorStatistics | None
    limits: Mapping[str, float]

    @property
    def n(self) -> int:
        """Number of rows with an error in the metric."""
        return self.errors.n if self.errors else 0

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Statistic (such as mean) -> (error, limit); the error is infinite without rows."""
        return {
            name: (getattr(self.errors, name) if self.errors else inf, limit)
            for name, limit in self.limits.items()
        }

    @property
    def holds(self) -> bool:
        """True if there are rows and no limit is exceeded."""
        return self.n > 0 and all(error <= limit for error, limit in self.figures.values())


def errors_against_limit(
    error_limit: ErrorLimit, rows: Iterable[JudgedRow[RunT, PredictionT]], *, metric: Any, fold: str
) -> BarResult:
    """Error statistics of the rows that an error limit selects, beside its limits for `fold`."""
    chosen = (row for row in rows if is_selected(row.run, error_limit))
    return BarResult(
        name=error_limit.name,
        fold=fold,
        errors=error_statistics(chosen, metric, bias=mean_error_of_all),
        limits=error_limit.limits.get(fold, {}),
    )


def is_selected(run: MeasuredRun, error_limit: ErrorLimit) -> bool:
    """True if an error limit's selectors match a run's published cells or derived properties."""
    return selected({**run.run_cells(), **cells_of(run.measurement)}, error_limit.where)
