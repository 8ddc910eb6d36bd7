"""Results of the bars that predictions of serving are held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.validation.errors.error_limits import BarResult, in_bar
from shardwright.validation.errors.judged_rows import grouped
from shardwright.validation.serving.measured_rows import ServingMetric
from shardwright.validation.serving.serving_errors import (
    ServingValidation,
    engine_and_device,
    errors_of,
    waiting,
)
from shardwright.validation.tables.table_facts import Bar

ENOUGH: Final = 30
"""Fewest rows for which an engine on a device has a bar of its own."""
PAIR_MEDIAN: Final = 0.15
"""Largest median TPOT error of an engine on a device."""
RIGHT: Final = 0.85
"""Least share of rows near capacity with a right prediction of waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingResult:
    """Share of rows near capacity with a right prediction of waiting."""

    name: str = "whether requests wait, near capacity"
    fold: str = "none"
    n: int
    share: float

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Name -> (share, least share)."""
        return {"right": (self.share, RIGHT)}

    @property
    def holds(self) -> bool:
        """True if there are rows, and the share is reached."""
        return self.n > 0 and self.share >= RIGHT


def judge_serving_bars(
    validations: Iterable[ServingValidation], bars: Sequence[Bar]
) -> tuple[BarResult | WaitingResult, ...]:
    """Results of all bars in their kinds of fold, over the rows that leave nothing open.

    Without held-out rows, each engine on a device with `ENOUGH` rows has a bar too.
    """
    results: list[BarResult | WaitingResult] = []
    for validation in validations:
        results += [_judged(bar, validation) for bar in bars if validation.fold in bar.limits]
        if validation.fold == "none":
            results += _engines_on_devices(validation)
            near = waiting(validation.rows)
            results.append(WaitingResult(n=near.n, share=near.right / near.n if near.n else 0.0))
    return tuple(results)


def _judged(bar: Bar, validation: ServingValidation) -> BarResult:
    rows = [row for row in validation.rows if in_bar(row.run, bar)]
    return BarResult(
        name=bar.name,
        fold=validation.fold,
        errors=errors_of(rows, ServingMetric(bar.metric or ServingMetric.TPOT)),
        limits=bar.limits[validation.fold],
    )


def _engines_on_devices(validation: ServingValidation) -> list[BarResult]:
    results = []
    for name, rows in sorted(grouped(validation.rows, engine_and_device).items()):
        errors = errors_of(rows, ServingMetric.TPOT)
        if errors is not None and errors.n >= ENOUGH:
            results.append(
                BarResult(
                    name=f"TPOT, {name}", fold="none", errors=errors, limits={"median": PAIR_MEDIAN}
                )
            )
    return results
