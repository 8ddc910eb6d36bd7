"""Prediction errors of served configurations on a terminal: a row an engine on a device."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.screens.accuracy_screen import skipped_lines
from shardwright.report.table_style import plain_table
from shardwright.units import format_percent
from shardwright.validation.errors.judged_rows import grouped
from shardwright.validation.serving.measured_deployment import Category
from shardwright.validation.serving.measured_rows import ServingMetric
from shardwright.validation.serving.serving_errors import (
    ServingRow,
    ServingValidation,
    category_of,
    engine_and_device,
    errors_of,
)


def render_serving(validation: ServingValidation) -> RenderableType:
    """Table of errors by engine and device, then of rows whose source leaves something open, with
    the skipped rows below it.
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
        (name, *_figures(rows, Category.KNOWN))
        for name, rows in sorted(grouped(validation.rows, engine_and_device).items())
    ]
    seen = {category_of(row, metric) for row in validation.rows for metric in ServingMetric}
    lines += [
        (category.value, *_figures(validation.rows, category))
        for category in Category
        if category in seen and category is not Category.KNOWN
    ]
    return Group(
        plain_table(header, lines, right=range(1, len(header)), spare=(13, 14, 15, 16, 4, 8, 12)),
        Words(Text(f"\n{serving_judged_line(validation)}")),
        *skipped_lines(validation),
    )


def _figures(rows: Sequence[ServingRow], category: Category) -> tuple[str, ...]:
    """Number, median, mean and bias of the errors of each metric."""
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
    """Numbers of judged rows, of those predicted not to fit, and of skipped rows, with reasons."""
    infeasible = sum(bool(row.infeasible) for row in validation.rows)
    called = f", {infeasible} called infeasible" if infeasible else ""
    return f"{len(validation.rows)} rows judged{called}, {validation.summary}"
