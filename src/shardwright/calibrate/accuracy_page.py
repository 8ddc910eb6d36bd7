"""The page docs/accuracy.md, written from a validation."""

from __future__ import annotations

from collections import Counter
from typing import Final

from shardwright.calibrate.validate import ErrorStatistics, RowResult, Validation
from shardwright.strategy.grid_notation import print_grid

FAR: Final = 0.15

_HEAD: Final = """# Accuracy

Predicted against measured, on published runs with a full configuration. This page is written by `make accuracy`; do not edit it.

Error is |predicted / measured - 1| on seconds a step or on bytes; bias is its mean with sign (minus: predicted too fast, or too small).
A run that happened and is called infeasible counts as 100 %. Nothing is tuned per row or per source.

In sample: the sustained clocks of the H100 (bf16, fp8) leave no mean error on the NeMo rows of `dgxc`; the A100's, and the passes of
element-wise kernels, come from Megatron rows of the A100 (`korthikanti`, `mlm_sc21`). They belong to the device; `docs/physics.md` lists
them. All other columns were not used to set a number, but some were looked at while terms were chosen. Judging on folds left out is
later work.
"""


def accuracy_page(validation: Validation, *, far: float = FAR) -> str:
    """Markdown text: statistics by source, rows further off than `far` (a fraction), skipped rows by reason."""
    parts = [
        _HEAD,
        _sources(validation, memory=False),
        _sources(validation, memory=True),
        _far(validation, far=far),
        _skipped(validation),
        _failures(validation),
    ]
    return "\n".join(part for part in parts if part)


def _percent(value: float, *, sign: bool = False) -> str:
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot break a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _sources(validation: Validation, *, memory: bool) -> str:
    rows: list[tuple[str, ...]] = []
    for source in validation.by_source:
        errors: ErrorStatistics | None = source.memory if memory else source.time
        if errors is not None:
            bias = _percent(errors.bias, sign=True)
            figures = (_percent(errors.mean), _percent(errors.median), _percent(errors.worst), bias)
            rows.append((source.source_id, str(errors.n), *figures, str(source.infeasible)))
    if not rows:
        return ""
    title = "## Memory by source" if memory else "## Time by source"
    return f"{title}\n\n" + _table(("source", "rows", "mean", "median", "worst", "bias", "called infeasible"), rows)


def _far(validation: Validation, *, far: float) -> str:
    rows = [_far_row(row) for row in validation.rows if max(abs(row.error or 0.0), abs(row.memory_error or 0.0)) > far]
    if not rows:
        return f"## Rows more than {100 * far:.0f} % off\n\nNone.\n"
    header = ("source", "row", "model", "devices", "strategy", "runtime", "time", "memory", "remark")
    return f"## Rows more than {100 * far:.0f} % off\n\n{len(rows)} of {len(validation.rows)}.\n\n" + _table(header, rows)


def _far_row(row: RowResult) -> tuple[str, ...]:
    measurement = row.case.measurement
    remark = f"infeasible: {row.infeasible}" if row.infeasible else "; ".join(row.case.assumptions)
    return (
        measurement.source_id,
        measurement.table_or_row,
        measurement.model_name,
        f"{measurement.gpu_count} x {measurement.gpu}",
        f"`{print_grid(row.case.grid)}`",
        row.case.runtime,
        "" if row.error is None else _percent(row.error, sign=True),
        "" if row.memory_error is None else _percent(row.memory_error, sign=True),
        remark,
    )


def _skipped(validation: Validation) -> str:
    counts = Counter((skip.measurement.source_id, skip.reason.value) for skip in validation.skipped)
    if not counts:
        return ""
    rows: list[tuple[str, ...]] = [(source, reason, str(count)) for (source, reason), count in sorted(counts.items())]
    return f"## Skipped rows\n\n{len(validation.skipped)} rows, by source and reason.\n\n" + _table(("source", "reason", "rows"), rows)


def _failures(validation: Validation) -> str:
    if not validation.failures:
        return ""
    right = sum(1 for failure in validation.failures if failure.predicted_infeasible)
    return f"## Configurations that did not fit\n\n{right} of {len(validation.failures)} are predicted not to fit.\n"
