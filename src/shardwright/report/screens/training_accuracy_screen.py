"""The `validate` screen for training runs: prediction errors, a row a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.pictures.prediction_scatter_plot import ScatterPoint
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.units import format_percent
from shardwright.validation.errors.prediction_errors import (
    ErrorStatistics,
    Validation,
    error_statistics,
    grouped,
    source_of,
)
from shardwright.validation.training.sweep_and_scaling_checks import (
    TrainingRow,
    TrainingValidation,
    timed,
)
from shardwright.validation.training.training_table_columns import TrainingMetric

MOST_LISTED: Final = 20
"""Up to this number of skipped rows, each has a line of its own."""


def render_validation(validation: TrainingValidation) -> RenderableType:
    """Table of prediction errors by source, with the skipped rows and failures below the table."""
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
        WrappedText(Text(f"\n{judged_line(validation)}")),
        *skipped_lines(validation),
    ]
    if validation.failures:
        text = (
            f"{validation.predicted_failures} of {len(validation.failures)} configurations that did"
            " not fit are predicted not to fit"
        )
        parts.append(WrappedText(Text(text)))
    return Group(*parts)


def skipped_lines(validation: Validation[Any, Any]) -> list[RenderableType]:
    """A line for each skipped row with its reason, or a hint at --json if there are too many."""
    if len(validation.skipped) > MOST_LISTED:
        return [WrappedText(Text("--json lists what each row lacks", style="dim"))]
    return [
        WrappedText(
            Text(
                f"  line {skip.measurement.line}:"
                f" {skip.reason.value}{f': {skip.detail}' if skip.detail else ''}"
            )
        )
        for skip in validation.skipped
    ]


def judged_line(validation: TrainingValidation) -> str:
    """Sentence with the number of judged rows, the number of skipped rows, and the reasons."""
    return f"{len(validation.rows)} rows judged, {validation.summary}"


def source_cells(source: str, rows: Sequence[TrainingRow]) -> tuple[str, ...]:
    """Table cells of a source: error statistics of time and memory, number of infeasible rows."""
    time, memory = (error_statistics(rows, metric) for metric in TrainingMetric)
    infeasible = sum(bool(row.infeasible) for row in rows)
    return (
        source,
        *(_error_cells(time) if time else ("-",) * 5),
        *(_error_cells(memory)[i] if memory else "-" for i in (0, 1, 3)),
        str(infeasible) if infeasible else "-",
    )


def _error_cells(errors: ErrorStatistics) -> tuple[str, ...]:
    """Cells of the number of rows, mean, median, worst and bias of errors."""
    sizes = (format_percent(size) for size in (errors.mean, errors.median, errors.worst))
    return (str(errors.n), *sizes, f"{100 * errors.bias:+.1f} %")


def scatter_points(validation: TrainingValidation) -> tuple[ScatterPoint, ...]:
    """Predicted and measured step times of all rows that have both, for a scatter plot."""
    return tuple(
        ScatterPoint(
            group=source_of(row),
            measured=measured,
            predicted=predicted,
            label=f"{row.run.measurement.model_name} {measured:.4g}, {predicted:.4g} s",
        )
        for row, predicted, measured in timed(validation.rows)
    )
