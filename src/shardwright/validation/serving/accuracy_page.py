"""The page docs/serving-accuracy.md, written from a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from shardwright.hardware.catalog.serving_constants import DECLARED_SERVING, SERVING
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.validation.errors.markdown_tables import percent, table
from shardwright.validation.serving.error_limits import ServingBarResult, judge_serving_bars
from shardwright.validation.serving.errors_by_fold import ServingStudy
from shardwright.validation.serving.measured_deployment import Metric
from shardwright.validation.serving.prediction_errors import (
    Column,
    Errors,
    ServingRow,
    ServingValidation,
    engine_and_device,
    errors_of,
    grouped,
)
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts import Facts

FAR: Final = 0.5
INFORMS: Final = 0.02
_HEAD: Final = """# Accuracy of serving

Predicted against measured, on published runs of vLLM, SGLang and TensorRT-LLM. This page is \
written by `make accuracy`; do not edit it.

Error is |predicted / measured - 1|; bias is its median with sign (minus: predicted too fast). \
TPOT is the time of each token behind the
first, TTFT that to the first (the mean of a run, its burst at the start among it), E2E = TTFT + \
(tokens - 1) x TPOT. A run that happened
and is called infeasible counts as 100 %. Nothing is tuned per row, per model or per engine's \
version.

Rows whose source leaves open whether tokens were guessed ahead (MTP), or whose degrees do not fit \
one another, have columns of their own,
and so have times to first tokens where the requests would fill the cache within 20 %: a few per \
cent of memory decide there whether they
wait.
Rows that repeat a measurement are left out.
"""
_METRICS: Final = (Metric.TPOT, Metric.TTFT, Metric.E2E)


def serving_page(study: ServingStudy, *, facts: Facts, far: float = FAR) -> str:
    """Markdown text.

    Args:
        facts: their remarks are shown beside rows.
        far: rows further off (a fraction) are listed.
    """
    plain = study.validation("none")
    parts = [
        _HEAD,
        _bars(judge_serving_bars(study.validations)),
        _constants(study),
        _columns(plain),
        _groups("By engine and device", plain, engine_and_device),
        _groups("By model", plain, lambda row: row.case.model.name),
        _groups("By engine's version", plain, lambda row: row.case.version),
        _folds(study),
        _throughput(plain),
        _far(plain, facts=facts, far=far),
        _skipped(plain),
    ]
    return "\n".join(part for part in parts if part)


def _bars(results: Sequence[ServingBarResult]) -> str:
    lines = []
    for result in results:
        figures = ", ".join(
            f"{name} {percent(found)} of {percent(limit)}"
            for name, (found, limit) in result.figures.items()
            if result.n
        )
        text = figures or "no rows"
        lines.append(
            (
                result.name,
                result.fold,
                str(result.n),
                f"**{text}**" if result.holds else f"*{text}*",
            )
        )
    about = (
        "Found and allowed; **bold** holds its bar, *italic* misses it. Only rows that leave"
        " nothing open count."
    )
    return f"## Bars\n\n{about}\n\n" + table(("rows", "held out", "n", "result"), lines)


def _constants(study: ServingStudy) -> str:
    """What was fitted, and how many rows tell it: those whose time moves by more than 2 % of the
    constant's change.
    """
    informed = (
        [0] * len(DECLARED_SERVING)
        if study.slopes is None
        else (abs(study.slopes.slope) > INFORMS).sum(axis=0).tolist()
    )
    lines = [
        (
            one.name,
            one.owner,
            f"{getattr(SERVING, one.name):.3g}",
            f"{one.prior:.3g}",
            str(rows),
            one.meaning,
            one.source,
        )
        for one, rows in zip(DECLARED_SERVING, informed, strict=True)
    ]
    about = (
        "Fitted to all rows that leave nothing open, of one role and without guesses; none is of a"
        " model, an engine or a version."
    )
    header = (
        "constant",
        "owner",
        "shipped",
        "prior",
        "rows that move it",
        "meaning",
        "source of the prior",
    )
    return f"## Constants\n\n{about}\n\n" + table(header, lines)


def _columns(validation: ServingValidation) -> str:
    lines = []
    for column in Column:
        cells = [_cell(errors_of(validation.counted(metric, column), metric)) for metric in Metric]
        if any(cell != "-" for cell in cells):
            lines.append((column.value, *cells))
    return "## What the sources leave open\n\nMedian, mean (rows).\n\n" + table(
        ("column", *(metric.value for metric in Metric)), lines
    )


def _cell(errors: Errors | None) -> str:
    return (
        "-" if errors is None else f"{percent(errors.median)}, {percent(errors.mean)} ({errors.n})"
    )


def _groups(title: str, validation: ServingValidation, by: Callable[[ServingRow], str]) -> str:
    lines: list[tuple[str, ...]] = []
    for name, rows in grouped(validation.rows, by).items():
        cells: list[str] = []
        for metric in _METRICS:
            errors = errors_of((row for row in rows if row.column(metric) is Column.KNOWN), metric)
            cells += [_cell(errors), percent(errors.bias, sign=True) if errors else "-"]
        if any(cell != "-" for cell in cells):
            lines.append((name, *cells))
    if not lines:
        return ""
    header = ("", *(word for metric in _METRICS for word in (metric.value, "bias")))
    return f"## {title}\n\nMedian, mean (rows).\n\n" + table(header, lines)


def _folds(study: ServingStudy) -> str:
    lines = []
    for validation in study.validations:
        name = "nothing" if validation.fold == "none" else f"each {validation.fold}"
        lines.append(
            (name, *(_cell(errors_of(validation.counted(metric), metric)) for metric in Metric))
        )
    about = "Each row predicted with constants fitted without the rows that are held out with it."
    return f"## Held out\n\n{about}\n\n" + table(
        ("held out", *(metric.value for metric in Metric)), lines
    )


def _throughput(validation: ServingValidation) -> str:
    lines = []
    rows = [row for row in validation.rows if row.case.measured(Metric.THROUGHPUT) is not None]
    for name, some in grouped(
        rows, lambda row: f"{row.case.model.name}, {engine_and_device(row)}, {_deployed(row)}"
    ).items():
        errors = errors_of(some, Metric.THROUGHPUT)
        if errors is not None:
            lines.append(
                (
                    name,
                    str(errors.n),
                    percent(errors.median),
                    percent(errors.mean),
                    percent(errors.bias, sign=True),
                )
            )
    if not lines:
        return ""
    return "## Throughput\n\n" + table(
        ("model, engine, device, deployment", "rows", "median", "mean", "bias"), lines
    )


def _deployed(row: ServingRow) -> str:
    return print_deployment(row.case.deployment)


def _far(validation: ServingValidation, *, facts: Facts, far: float) -> str:
    lines = [
        _far_row(row, facts=facts)
        for row in validation.rows
        if max((abs(row.error(m) or 0.0) for m in Metric), default=0.0) > far
    ]
    title = f"## Rows more than {100 * far:.0f} % off\n\n"
    if not lines:
        return f"{title}None.\n"
    header = (
        "source",
        "row",
        "model",
        "device",
        "engine",
        "deployment",
        "in, out, in flight",
        *(metric.value for metric in Metric),
        "why",
    )
    return f"{title}{len(lines)} of {len(validation.rows)}.\n\n" + table(header, lines)


def _far_row(row: ServingRow, *, facts: Facts) -> tuple[str, ...]:
    case, measurement = row.case, row.case.measurement
    cells = cells_of(measurement)
    remark = next((remark.sentence for remark in facts.remarks if remark.where.matches(cells)), "")
    doubt = row.column(Metric.TTFT).value if row.column(Metric.TTFT) is not Column.KNOWN else ""
    return (
        measurement.source_id,
        measurement.table_or_row,
        case.model.name,
        case.cluster.node.accelerator.name,
        case.version,
        f"`{_deployed(row)}`",
        f"{measurement.isl}, {measurement.osl}, {case.concurrency}",
        *(
            percent(error, sign=True) if (error := row.error(metric)) is not None else ""
            for metric in Metric
        ),
        f"infeasible: {row.infeasible}" if row.infeasible else remark or doubt,
    )


def _skipped(validation: ServingValidation) -> str:
    counts = Counter(
        (skip.measurement.source_id, skip.reason.value, skip.detail) for skip in validation.skipped
    )
    if not counts:
        return ""
    lines = [
        (source, reason, detail, str(count))
        for (source, reason, detail), count in sorted(counts.items())
    ]
    return f"## Skipped rows\n\n{len(validation.skipped)} rows.\n\n" + table(
        ("source", "reason", "what", "rows"), lines
    )
