"""Reasons why a row of a table is skipped, that is, not compared with a prediction."""

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
from shardwright.lazily_compiled_dataclass import dataclass


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
"""Class of an error about a model, strategy or runtime -> reason to skip the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A skipped row with its reason: it is not compared with a prediction.

    Args:
        measurement: the row, of any kind of table.
        detail: the column or the words in question.
    """

    measurement: Any
    reason: SkipReason
    detail: str = ""


class UnusableRowError(Exception):
    """Raised while a row is read; the row becomes a `SkippedRow`, never an error for the user."""

    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def skip_of(row: Any, error: UnusableRowError | ShardwrightError) -> SkippedRow:
    """Skipped row with the reason and detail of an error in reading or predicting the row."""
    if isinstance(error, UnusableRowError):
        return SkippedRow(measurement=row, reason=error.reason, detail=error.detail)
    reason = next(reason for kind, reason in UNSUPPORTED.items() if isinstance(error, kind))
    return SkippedRow(measurement=row, reason=reason, detail=error.message)
