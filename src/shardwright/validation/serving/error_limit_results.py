"""Error limits of serving predictions, and whether the predictions keep within them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.check_against_limits import BarResult, is_selected
from shardwright.validation.errors.prediction_errors import grouped
from shardwright.validation.serving.serving_errors import (
    ServingValidation,
    engine_and_device,
    errors_of,
    waiting_agreement,
)
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.tables.table_facts_from_toml import ErrorLimit

MIN_ROWS: Final = 30
"""Smallest number of rows for which an engine on a device has its own error limit."""
PAIR_MEDIAN: Final = 0.15
"""Largest median TPOT error of an engine on a device."""
MIN_RIGHT_SHARE: Final = 0.85
"""Least share of rows near capacity with a right prediction of waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingResult:
    """Share of rows near capacity with a right prediction of waiting, and its limit."""

    name: str = "whether requests wait, near capacity"
    fold: str = "none"
    n: int
    share: float

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """``right`` -> (share of rows right about waiting, least allowed share)."""
        return {"right": (self.share, MIN_RIGHT_SHARE)}

    @property
    def holds(self) -> bool:
        """True if there are rows and the share is at least `MIN_RIGHT_SHARE`."""
        return self.n > 0 and self.share >= MIN_RIGHT_SHARE


def serving_limit_results(
    validations: Iterable[ServingValidation], bars: Sequence[ErrorLimit]
) -> tuple[BarResult | WaitingResult, ...]:
    """Results of error limits by kind of fold over fully described rows; for "none" waiting too.

    Without held-out rows, each engine on a device with `MIN_ROWS` rows has a limit too.
    """
    results: list[BarResult | WaitingResult] = []
    for validation in validations:
        results += [_limit_result(bar, validation) for bar in bars if validation.fold in bar.limits]
        if validation.fold == "none":
            results += _engines_on_devices(validation)
            agreement = waiting_agreement(validation.rows)
            results.append(
                WaitingResult(
                    n=agreement.n, share=agreement.right / agreement.n if agreement.n else 0.0
                )
            )
    return tuple(results)


def _limit_result(bar: ErrorLimit, validation: ServingValidation) -> BarResult:
    """Errors of the rows that an error limit selects, beside its limits for this kind of fold."""
    rows = [row for row in validation.rows if is_selected(row.run, bar)]
    return BarResult(
        name=bar.name,
        fold=validation.fold,
        errors=errors_of(rows, ServingMetric(bar.metric or ServingMetric.TPOT)),
        limits=bar.limits[validation.fold],
    )


def _engines_on_devices(validation: ServingValidation) -> list[BarResult]:
    """Errors of TPOT, beside a limit on the median, by engine and device with `MIN_ROWS` rows."""
    results = []
    for name, rows in sorted(grouped(validation.rows, engine_and_device).items()):
        errors = errors_of(rows, ServingMetric.TPOT)
        if errors is not None and errors.n >= MIN_ROWS:
            results.append(
                BarResult(
                    name=f"TPOT, {name}", fold="none", errors=errors, limits={"median": PAIR_MEDIAN}
                )
            )
    return results
