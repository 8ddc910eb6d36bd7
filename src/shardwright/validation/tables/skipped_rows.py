"""Reasons why a row of a table is not compared with a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from shardwright.errors import (
    ClusterError,
    ModelError,
    RuntimeModelError,
    ShardwrightError,
    StrategyError,
)
from shardwright.lazy_dataclass import dataclass


class SkipReason(StrEnum):
    """Reason why a row is skipped; the list is closed."""

    LOW_QUALITY = "low-quality"
    INCOMPLETE_CONFIGURATION = "incomplete-configuration"
    INCONSISTENT_CONFIGURATION = "inconsistent-configuration"
    UNKNOWN_ACCELERATOR = "unknown-accelerator"
    UNSUPPORTED_MODEL = "unsupported-model"
    UNSUPPORTED_RUNTIME = "unsupported-runtime"
    UNSUPPORTED_STRATEGY = "unsupported-strategy"
    MIXED_CLUSTER = "mixed-cluster"
    FINE_TUNING = "fine-tuning"
    NO_MEASUREMENT = "no-measurement"
    AMBIGUOUS_FAILURE = "ambiguous-failure"
    DUPLICATE = "duplicate"


UNSUPPORTED: Final[Mapping[type[ShardwrightError], SkipReason]] = {
    StrategyError: SkipReason.UNSUPPORTED_STRATEGY,
    ModelError: SkipReason.UNSUPPORTED_MODEL,
    ClusterError: SkipReason.UNSUPPORTED_RUNTIME,
    RuntimeModelError: SkipReason.UNSUPPORTED_RUNTIME,
}
"""Error of a model, strategy or runtime that cannot be described here -> reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A row that is not compared with a prediction.

    Args:
        measurement: the row, of any kind of table.
        detail: the column or the words in question.
    """

    measurement: Any
    reason: SkipReason
    detail: str = ""


class UnusableRowError(Exception):
    """Stops the reading of a row: it becomes a `Skip`, never an error for the user."""

    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def skip_of(row: Any, error: UnusableRowError | ShardwrightError) -> Skip:
    """The skipped row for an error that reading or predicting it raised."""
    if isinstance(error, UnusableRowError):
        return Skip(measurement=row, reason=error.reason, detail=error.detail)
    reason = next(reason for kind, reason in UNSUPPORTED.items() if isinstance(error, kind))
    return Skip(measurement=row, reason=reason, detail=error.message)
