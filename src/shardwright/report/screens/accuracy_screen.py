"""Predicted against measured on a terminal: a row a source."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.pictures.scatter_plot import Point
from shardwright.report.table_style import plain_table
from shardwright.units import format_percent
from shardwright.validation.errors.prediction_errors import (
    ErrorStatistics,
    SourceResult,
    Validation,
)

MOST_LISTED: Final = 20
"""Rows that are not judged, of which each has its line."""


def render_validation(validation: Validation) -> RenderableType:
    """Errors by source, what was skipped and why."""
    rows = [_row(source) for source in validation.by_source]
    header = (
        "source",
        "rows",
        "time: mean",
        "median",
        "worst",
        "bias",
        "rows",
        "memory: mean",
        "worst",
        "called infeasible",
    )
    parts: list[RenderableType] = [
        plain_table(header, rows, right=range(1, len(header)), spare=(5, 4, 8, 6, 9)),
        Words(Text(f"\n{judged_line(validation)}")),
        *_skipped(validation),
    ]
    if validation.failures:
        right = sum(f.predicted_infeasible for f in validation.failures)
        parts.append(
            Words(
                Text(
                    f"{right} of {len(validation.failures)} configurations that did not fit are"
                    " predicted not to fit"
                )
            )
        )
    return Group(*parts)


def _skipped(validation: Validation) -> list[RenderableType]:
    """The first rows that were not judged, each with what it lacks, of tables that mean to have
    none.
    """
    if len(validation.skipped) > MOST_LISTED:
        return [Words(Text("--json says of each what it lacks", style="dim"))]
    return [
        Words(
            Text(
                f"  line {skip.measurement.line}:"
                f" {skip.reason.value}{f': {skip.detail}' if skip.detail else ''}"
            )
        )
        for skip in validation.skipped
    ]


def judged_line(validation: Validation) -> str:
    """Number of rows that were judged, and the reasons why others were not."""
    reasons = Counter(skip.reason.value for skip in validation.skipped)
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return (
        f"{len(validation.rows)} rows judged, {len(validation.skipped)}"
        f" skipped{f' ({skipped})' if skipped else ''}"
    )


def _row(source: SourceResult) -> tuple[str, ...]:
    time, memory = source.time, source.memory
    return (
        source.source_id,
        *(_figures(time) if time else ("-",) * 5),
        *(_figures(memory)[i] if memory else "-" for i in (0, 1, 3)),
        str(source.infeasible) if source.infeasible else "-",
    )


def _figures(errors: ErrorStatistics) -> tuple[str, ...]:
    sizes = (format_percent(e) for e in (errors.mean, errors.median, errors.worst))
    return (str(errors.n), *sizes, f"{100 * errors.bias:+.1f} %")


def points_of(validation: Validation) -> tuple[Point, ...]:
    """Step times of all rows with both, for a scatter plot."""
    return tuple(
        Point(
            group=row.case.measurement.source_id,
            measured=row.case.measured_s,
            predicted=row.predicted_s,
            label=(
                f"{row.case.measurement.model_name} {row.case.measured_s:.4g},"
                f" {row.predicted_s:.4g} s"
            ),
        )
        for row in validation.rows
        if row.case.measured_s and row.predicted_s
    )
