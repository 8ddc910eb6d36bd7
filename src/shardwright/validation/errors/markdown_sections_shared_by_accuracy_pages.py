"""Markdown sections and tables that the accuracy pages of training and serving share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shardwright.units import format_percent
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    MeasuredRun,
    PredictionT,
    RunT,
)
from shardwright.validation.errors.prediction_errors import JudgedRow, Validation
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts_from_toml import Remark

Line = tuple[str, ...]


def percent(value: float, *, sign: bool = False) -> str:
    """Format a fraction in percent with one decimal: ``41.2 %``; `sign`: + if positive."""
    return f"{100 * value:+.1f} %" if sign else format_percent(value)


def error_cell(error: float | None) -> str:
    """Format a fractional error in percent with its sign; empty text for None."""
    return "" if error is None else percent(error, sign=True)


def section(title: str, header: Sequence[str], lines: Sequence[Line], *, about: str = "") -> str:
    """Markdown section: a heading, an optional sentence, and a table; empty without lines."""
    if not lines:
        return ""
    rows = [header, ["---"] * len(header), *lines]
    table = "\n".join("| " + " | ".join(map(_escaped, row)) + " |" for row in rows)
    return "\n\n".join([f"## {title}", *([about] if about else []), table]) + "\n"


def _escaped(text: str) -> str:
    """Text on one line, with ``|`` escaped for a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def far_section(
    validation: Validation[RunT, PredictionT],
    header: Sequence[str],
    line: Callable[[JudgedRow[RunT, PredictionT]], Line],
    *,
    far: float,
    metrics: Iterable[Any],
) -> str:
    """Markdown section of rows with |error| above the fraction `far` in any metric, or "None."."""
    metrics = tuple(metrics)
    lines = [line(row) for row in validation.rows if row.largest_error(metrics) > far]
    title = f"Rows more than {100 * far:.0f} % off"
    return section(title, header, lines, about=f"{len(lines)} of {len(validation.rows)} rows.") or (
        f"## {title}\n\nNone.\n"
    )


def skipped_section(validation: Validation[RunT, PredictionT], *, details: bool) -> str:
    """Markdown table: counts of skipped rows by source, reason (and detail if `details`); or empty.

    With `details`, also by detail.
    """
    counts = Counter(
        (
            skip.measurement.source_id,
            skip.reason.value,
            *((skip.detail,) if details else ()),
        )
        for skip in validation.skipped
    )
    lines = [(*words, str(count)) for words, count in sorted(counts.items())]
    header = ("source", "reason", *(("what",) if details else ()), "rows")
    about = f"{len(validation.skipped)} rows are not judged."
    return section("Skipped rows", header, lines, about=about)


def remark_of(run: MeasuredRun, remarks: Iterable[Remark]) -> str:
    """Sentence of the first remark whose selector matches a run; empty for none."""
    cells = {**cells_of(run.measurement), **run.run_cells()}
    return next((remark.sentence for remark in remarks if remark.where.matches(cells)), "")
