"""Predicted against measured on a terminal: a row a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.pictures.scatter_plot import Point
from shardwright.report.table_style import plain_table
from shardwright.units import format_percent
from shardwright.validation.errors.judged_rows import (
    ErrorStatistics,
    Validation,
    error_statistics,
    grouped,
    source_of,
)
from shardwright.validation.training.measured_rows import TrainingMetric
from shardwright.validation.training.order_and_scaling import (
    TrainingRow,
    TrainingValidation,
    timed,
)

MOST_LISTED: Final = 20
"""Most skipped rows of which each has a line."""


def render_validation(validation: TrainingValidation) -> RenderableType:
    """Table of errors by source, with the skipped rows and the failures below it."""
    rows = [
        source_cells(source, members)
        for source, members in grouped(validation.rows, source_of).items()
    ]
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
        *skipped_lines(validation),
    ]
    if validation.failures:
        text = (
            f"{validation.predicted_failures} of {len(validation.failures)} configurations that did"
            " not fit are predicted not to fit"
        )
        parts.append(Words(Text(text)))
    return Group(*parts)


def skipped_lines(validation: Validation[Any, Any]) -> list[RenderableType]:
    """A line for each skipped row of a table that has few of them."""
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


def judged_line(validation: TrainingValidation) -> str:
    """Numbers of judged and of skipped rows, with the reasons."""
    return f"{len(validation.rows)} rows judged, {validation.summary}"


def source_cells(source: str, rows: Sequence[TrainingRow]) -> tuple[str, ...]:
    """Cells of a source: statistics of the errors in time and in memory, infeasible rows."""
    time, memory = (error_statistics(rows, metric) for metric in TrainingMetric)
    infeasible = sum(bool(row.infeasible) for row in rows)
    return (
        source,
        *(_figures(time) if time else ("-",) * 5),
        *(_figures(memory)[i] if memory else "-" for i in (0, 1, 3)),
        str(infeasible) if infeasible else "-",
    )


def _figures(errors: ErrorStatistics) -> tuple[str, ...]:
    sizes = (format_percent(size) for size in (errors.mean, errors.median, errors.worst))
    return (str(errors.n), *sizes, f"{100 * errors.bias:+.1f} %")


def points_of(validation: TrainingValidation) -> tuple[Point, ...]:
    """Predicted and measured step times of all rows that have both, for a scatter plot."""
    return tuple(
        Point(
            group=source_of(row),
            measured=measured,
            predicted=predicted,
            label=f"{row.run.measurement.model_name} {measured:.4g}, {predicted:.4g} s",
        )
        for row, predicted, measured in timed(validation.rows)
    )
