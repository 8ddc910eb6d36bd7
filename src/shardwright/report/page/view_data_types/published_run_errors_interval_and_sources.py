"""Data of the view of accuracy: predictions of published runs, interval, doubts and sources."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.scatter_chart_data import ScatterChart


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyRun:
    """A published run that is like this one, with its prediction.

    The prediction used constants that were fitted without its laboratory's runs.

    Args:
        strategy: degrees of parallelism above 1.
        error: predicted / measured - 1.
        inside: True if the measurement is inside the prediction interval.
        reference: where the measurement was published.
    """

    model: str
    accelerator: str
    devices: int
    runtime: str
    strategy: str
    sequence_tokens: int
    measured_s: float
    predicted_s: float
    error: float
    inside: bool
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """Errors of a group of published runs.

    Args:
        name: of the group; a framework, or ``all``.
        runs: number of runs.
        median: median of |error|, a fraction.
        inside: fraction of the measurements that are inside their intervals.
    """

    name: str
    runs: int
    median: float
    inside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPart:
    """A doubt, and what it adds to the interval.

    Args:
        name: reason for the doubt.
        share: to what part this prediction has it, 0 to 1.
        half_width: what it adds to the half-width, a fraction of the step.
    """

    name: str
    share: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowingMeasurement:
    """The measurement that would narrow the interval most.

    Args:
        part: the doubt that it is about.
        command: command that measures.
        interval_s: low and high end of the interval without that doubt, at the same step; None if
            no doubt but the error of all predictions widens it.
    """

    part: str
    command: str
    interval_s: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A number that the prediction used, as text, with its evidence and reference."""

    quantity: str
    value: str
    evidence: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionAccuracy:
    """Errors of predictions of published runs, and the sources of this prediction.

    Args:
        interval_s: low and high end of the prediction interval.
        interval_share: fraction of comparable runs that are expected inside.
        half_width: (high end / step - 1), a fraction.
        chart: measured against predicted steps of all published runs.
        nearest: the published runs most like this one, the nearest first.
        errors: of the nearest runs; of all runs of the same framework, if there are any; and of all
            published runs.
        parts: doubts, the one that adds most first.
    """

    step_s: float
    interval_s: tuple[float, float]
    interval_share: float
    half_width: float
    chart: ScatterChart
    nearest: tuple[NearbyRun, ...]
    errors: tuple[RunErrors, ...]
    parts: tuple[IntervalPart, ...]
    narrowing: NarrowingMeasurement
    sources: tuple[SourceRow, ...]
