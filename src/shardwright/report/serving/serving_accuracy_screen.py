"""The `validate` screen for deployments: prediction errors, a row for each engine and device."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.screens.training_accuracy_screen import skipped_lines
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.units import format_percent
from shardwright.validation.errors.prediction_errors import grouped
from shardwright.validation.serving.measured_deployment import Category
from shardwright.validation.serving.serving_errors import (
    ServingRow,
    ServingValidation,
    category_of,
    engine_and_device,
    errors_of,
)
from shardwright.validation.serving.serving_table_columns import ServingMetric


def render_serving(validation: ServingValidation) -> RenderableType:
    """Table of errors by engine and device, then by completeness of the source, then skipped rows.

    Rows whose source leaves something open are in lines of their own.
    """
    header = (
        "engine, device",
        *(
            word
            for metric in ServingMetric
            for word in (f"{metric.value}: rows", "median", "mean", "bias")
        ),
    )
    lines = [
        (name, *_error_cells(rows, Category.KNOWN))
        for name, rows in sorted(grouped(validation.rows, engine_and_device).items())
    ]
    categories = {category_of(row, metric) for row in validation.rows for metric in ServingMetric}
    lines += [
        (category.value, *_error_cells(validation.rows, category))
        for category in Category
        if category in categories and category is not Category.KNOWN
    ]
    return Group(
        plain_table(header, lines, right=range(1, len(header)), spare=(13, 14, 15, 16, 4, 8, 12)),
        WrappedText(Text(f"\n{serving_judged_line(validation)}")),
        *skipped_lines(validation),
    )


def _error_cells(rows: Sequence[ServingRow], category: Category) -> tuple[str, ...]:
    """Four cells a metric: number, median, mean and bias of its errors; dashes without rows."""
    cells: list[str] = []
    for metric in ServingMetric:
        errors = errors_of(rows, metric, category)
        if errors is None:
            cells += ["-"] * 4
        else:
            figures = (format_percent(errors.median), format_percent(errors.mean))
            cells += [str(errors.n), *figures, f"{100 * errors.bias:+.1f} %"]
    return tuple(cells)


def serving_judged_line(validation: ServingValidation) -> str:
    """Sentence with the numbers of judged, infeasible and skipped rows, and the reasons."""
    infeasible = sum(bool(row.infeasible) for row in validation.rows)
    infeasible_text = f", {infeasible} called infeasible" if infeasible else ""
    return f"{len(validation.rows)} rows judged{infeasible_text}, {validation.summary}"
