"""Limits that predictions of serving are held to: a median and a mean of |error| over groups of
rows, in a kind of fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.validation.serving.measured_deployment import Metric
from shardwright.validation.serving.prediction_errors import (
    ServingRow,
    ServingValidation,
    engine_and_device,
    errors_of,
    grouped,
    waiting,
)

ENOUGH: Final = 30
"""Rows from which on an engine on a device has a bar of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBar:
    """Errors of `metric` over the rows of its column that `where` picks must not exceed limits.

    Args:
        fold: in which kind of fold.
        median, mean, worst: limits; inf = none.
    """

    name: str
    metric: Metric
    where: Callable[[ServingRow], bool]
    fold: str = "none"
    median: float = inf
    mean: float = inf
    worst: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBarResult:
    """What a bar found: n rows, and figures beside their limits, ``median`` -> (found, limit)."""

    name: str
    fold: str
    n: int
    figures: dict[str, tuple[float, float]]

    @property
    def holds(self) -> bool:
        """There are rows, and no limit is exceeded; a share must be reached."""
        return self.n > 0 and all(
            found >= limit if name == "right" else found <= limit
            for name, (found, limit) in self.figures.items()
        )


def is_sparse(row: ServingRow) -> bool:
    """Whether the model has routed experts."""
    return any(o.experts is not None for b in row.case.model.blocks for o in b.operators)


def _every(_: ServingRow) -> bool:
    return True


def _maximum(row: ServingRow) -> bool:
    return row.case.measurement.protocol == "maximum"


BARS: Final = (
    ServingBar(name="TPOT", metric=Metric.TPOT, where=_every, median=0.08, mean=0.12),
    ServingBar(
        name="TPOT, each model held out",
        metric=Metric.TPOT,
        where=_every,
        fold="model",
        median=0.10,
        mean=0.14,
    ),
    ServingBar(
        name="TTFT, vLLM",
        metric=Metric.TTFT,
        where=lambda row: row.case.engine.engine == "vllm",
        median=0.15,
    ),
    ServingBar(name="TTFT", metric=Metric.TTFT, where=_every, median=0.20),
    ServingBar(name="E2E", metric=Metric.E2E, where=_every, median=0.10),
    ServingBar(
        name="maximum throughput, dense",
        metric=Metric.THROUGHPUT,
        where=lambda row: _maximum(row) and not is_sparse(row),
        mean=0.12,
    ),
    ServingBar(
        name="maximum throughput, experts",
        metric=Metric.THROUGHPUT,
        where=lambda row: _maximum(row) and is_sparse(row),
        mean=0.20,
    ),
    ServingBar(
        name="DeepSeek-R1, attention DP 8 and EP 8",
        metric=Metric.THROUGHPUT,
        where=lambda row: (
            row.case.measurement.source_id == "trtllm-r1" and row.case.measurement.dpa == 8
        ),
        worst=0.10,
    ),
    ServingBar(
        name="TPOT, prefill apart, no guesses",
        metric=Metric.TPOT,
        where=lambda row: row.case.disaggregated and not row.case.guessed,
        median=0.15,
    ),
    ServingBar(
        name="TPOT, tokens guessed ahead",
        metric=Metric.TPOT,
        where=lambda row: row.case.guessed,
        median=0.15,
    ),
)
PAIR_MEDIAN: Final = 0.15
"""Of TPOT, for each engine on a device with `ENOUGH` rows."""
RIGHT: Final = 0.85
"""Share of rows near capacity of which it must be right whether requests wait."""


def judge_serving_bars(validations: Iterable[ServingValidation]) -> tuple[ServingBarResult, ...]:
    """All bars over the kinds of fold that are at hand."""
    found: list[ServingBarResult] = []
    for validation in validations:
        found += [_judged(bar, validation) for bar in BARS if bar.fold == validation.fold]
        if validation.fold == "none":
            found += _pairs(validation)
            near = waiting(validation.rows)
            share = near.right / near.n if near.n else 0.0
            found.append(
                ServingBarResult(
                    name="whether requests wait, near capacity",
                    fold="none",
                    n=near.n,
                    figures={"right": (share, RIGHT)},
                )
            )
    return tuple(found)


def _judged(bar: ServingBar, validation: ServingValidation) -> ServingBarResult:
    errors = errors_of(
        (row for row in validation.counted(bar.metric) if bar.where(row)), bar.metric
    )
    limits = {"median": bar.median, "mean": bar.mean, "worst": bar.worst}
    figures = {
        name: (getattr(errors, name) if errors else inf, limit)
        for name, limit in limits.items()
        if limit < inf
    }
    return ServingBarResult(
        name=bar.name, fold=bar.fold, n=errors.n if errors else 0, figures=figures
    )


def _pairs(validation: ServingValidation) -> list[ServingBarResult]:
    """Engines on devices with enough rows."""
    found = []
    for name, rows in grouped(validation.counted(Metric.TPOT), engine_and_device).items():
        errors = errors_of(rows, Metric.TPOT)
        if errors is not None and errors.n >= ENOUGH:
            found.append(
                ServingBarResult(
                    name=f"TPOT, {name}",
                    fold="none",
                    n=errors.n,
                    figures={"median": (errors.median, PAIR_MEDIAN)},
                )
            )
    return found
