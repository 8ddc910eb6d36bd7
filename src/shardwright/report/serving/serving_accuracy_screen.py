"""Predicted against measured serving on a terminal: a row an engine on a device."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.screens.accuracy_screen import MOST_LISTED
from shardwright.report.table_style import plain_table
from shardwright.units import format_percent
from shardwright.validation.serving.measured_deployment import Metric
from shardwright.validation.serving.prediction_errors import (
    Column,
    ServingRow,
    ServingValidation,
    engine_and_device,
    errors_of,
    grouped,
)


def render_serving(validation: ServingValidation) -> RenderableType:
    """Errors by engine and device, then of what the sources leave open,
    and why rows were skipped.
    """
    header = (
        "engine, device",
        *(
            word
            for metric in Metric
            for word in (f"{metric.value}: rows", "median", "mean", "bias")
        ),
    )
    lines = []
    for name, rows in grouped(validation.rows, engine_and_device).items():
        lines.append((name, *_figures(rows, Column.KNOWN)))
    for column in Column:
        if column is not Column.KNOWN and any(
            row.column(metric) is column for row in validation.rows for metric in Metric
        ):
            lines.append((column.value, *_figures(validation.rows, column)))
    parts: list[RenderableType] = [
        plain_table(header, lines, right=range(1, len(header)), spare=(13, 14, 15, 16, 4, 8, 12)),
        Words(Text(f"\n{serving_judged_line(validation)}")),
    ]
    if len(validation.skipped) > MOST_LISTED:
        parts.append(Words(Text("--json says of each what it lacks", style="dim")))
    else:
        parts += [
            Words(
                Text(
                    f"  line {skip.measurement.line}:"
                    f" {skip.reason.value}{f': {skip.detail}' if skip.detail else ''}"
                )
            )
            for skip in validation.skipped
        ]
    return Group(*parts)


def _figures(rows: tuple[ServingRow, ...], column: Column) -> tuple[str, ...]:
    cells: list[str] = []
    for metric in Metric:
        errors = errors_of((row for row in rows if row.column(metric) is column), metric)
        if errors is None:
            cells += ["-"] * 4
        else:
            cells += [
                str(errors.n),
                format_percent(errors.median),
                format_percent(errors.mean),
                f"{100 * errors.bias:+.1f} %",
            ]
    return tuple(cells)


def serving_judged_line(validation: ServingValidation) -> str:
    """Number of rows that were judged, number of those that are called infeasible, and the reasons
    why others were not judged.
    """
    reasons = Counter(skip.reason.value for skip in validation.skipped)
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    infeasible = sum(bool(row.infeasible) for row in validation.rows)
    called = f", {infeasible} called infeasible" if infeasible else ""
    return (
        f"{len(validation.rows)} rows judged{called}, {len(validation.skipped)}"
        f" skipped{f' ({skipped})' if skipped else ''}"
    )
