"""Markdown tables of the accuracy page."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_percent
from shardwright.validation.errors.prediction_errors import RowResult, Validation
from shardwright.validation.tables.measured_run import Case
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts import Remark


def percent(value: float, *, sign: bool = False) -> str:
    """A fraction in percent with one digit."""
    return f"{100 * value:+.1f} %" if sign else format_percent(value)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return (
        "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"
    )


def _cell(text: str) -> str:
    """Text that cannot break a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def far_rows(
    validation: Validation, *, far: float, remarks: Sequence[Remark]
) -> list[tuple[str, ...]]:
    """A line for every row whose time or memory is further off than `far`, with what a remark says
    of it.
    """
    return [
        _far_row(row, remarks=remarks)
        for row in validation.rows
        if max(abs(row.error or 0.0), abs(row.memory_error or 0.0)) > far
    ]


def _far_row(row: RowResult, *, remarks: Sequence[Remark]) -> tuple[str, ...]:
    measurement = row.case.measurement
    why = (
        f"infeasible: {row.infeasible}" if row.infeasible else remark_of(row.case, remarks=remarks)
    )
    return (
        measurement.source_id,
        measurement.table_or_row,
        measurement.model_name,
        f"{row.case.cluster.num_devices} x {measurement.gpu}",
        f"`{print_grid(row.case.grid)}`",
        row.case.runtime,
        "" if row.error is None else percent(row.error, sign=True),
        "" if row.memory_error is None else percent(row.memory_error, sign=True),
        why,
    )


def remark_of(case: Case, *, remarks: Sequence[Remark]) -> str:
    """The sentence of the first remark whose conditions hold for the row and the plan that ran;
    empty if nobody has looked yet.
    """
    grid = case.grid
    plan = {
        **{name: getattr(grid, name) for name in ("tp", "cp", "pp", "dp", "ep", "zero", "shard")},
        "micro_batch": grid.microbatch,
        "microbatches": case.job.global_batch / (grid.dp * grid.microbatch),
        "runtime": case.runtime,
    }
    cells = cells_of(case.measurement) | plan
    return next((remark.sentence for remark in remarks if remark.where.matches(cells)), "")
