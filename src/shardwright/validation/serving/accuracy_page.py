"""Markdown page of the accuracy of predicted serving configurations (docs/serving-accuracy.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from shardwright.hardware.catalog.fitted_serving_constants import (
    DECLARED_SERVING,
    SERVING,
    ServingConstants,
)
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.validation.errors.accuracy_page_tables import (
    Line,
    error_cell,
    far_section,
    percent,
    remark_of,
    section,
    skipped_section,
)
from shardwright.validation.errors.error_limits import BarResult
from shardwright.validation.errors.prediction_errors import ErrorStatistics, grouped
from shardwright.validation.serving.measured_deployment import Category, ServingRun, ServingValues
from shardwright.validation.serving.serving_error_limits import WaitingResult, serving_limit_results
from shardwright.validation.serving.serving_errors import (
    ServingRow,
    ServingValidation,
    category_of,
    engine_and_device,
    errors_of,
)
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.table_reader import Study
from shardwright.validation.tables.table_facts import TableFacts

FAR: Final = 0.5
"""Relative error above which the page lists a row."""
INFORMS: Final = 0.02
"""Least slope at which a row counts as informing a constant."""
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
_TIMES: Final = (ServingMetric.TPOT, ServingMetric.TTFT, ServingMetric.E2E)
_FIGURES: Final = "Median, mean (rows)."
ServingStudy = Study[ServingRun, ServingValues, ServingConstants]


def serving_page(
    study: ServingStudy, *, facts: TableFacts, far: float = FAR, picture: str = ""
) -> str:
    """Markdown page of the accuracy of serving predictions.

    Args:
        facts: bars and remarks about the rows.
        far: error above which a row is listed, as a fraction.
        picture: not used: the page has no scatter plot.
    """
    del picture
    plain = study.validation("none")
    parts = [
        _HEAD,
        _limits_section(serving_limit_results(study.validations, facts.bars)),
        _constants_section(study),
        _categories_section(plain),
        _groups_section("By engine and device", plain, engine_and_device),
        _groups_section("By model", plain, lambda row: row.run.model.name),
        _groups_section("By engine's version", plain, lambda row: row.run.version),
        _folds_section(study),
        _throughput_section(plain),
        _far_section(plain, facts=facts, far=far),
        skipped_section(plain, about="", details=True),
    ]
    return "\n".join(part for part in parts if part)


def _limits_section(results: Sequence[BarResult | WaitingResult]) -> str:
    """Markdown section with the results of all error limits: bold if kept, italic if exceeded."""
    lines: list[Line] = []
    for result in results:
        figures = ", ".join(
            f"{name} {percent(figure)} of {percent(limit)}"
            for name, (figure, limit) in result.figures.items()
        )
        text = figures if result.n else "no rows"
        mark = "**" if result.holds else "*"
        lines.append((result.name, result.fold, str(result.n), f"{mark}{text}{mark}"))
    about = (
        "Found and allowed; **bold** holds its bar, *italic* misses it. Only rows that leave"
        " nothing open count."
    )
    return section("Bars", ("rows", "held out", "n", "result"), lines, about=about)


def _constants_section(study: ServingStudy) -> str:
    """Markdown section with the constants, priors, and the number of rows that move each."""
    slopes = study.fitted.report
    informed = (
        [0] * len(DECLARED_SERVING)
        if slopes is None
        else (abs(slopes.slope) > INFORMS).sum(axis=0).tolist()
    )
    lines = [
        (
            constant.name,
            constant.owner,
            f"{getattr(SERVING, constant.name):.3g}",
            f"{constant.prior:.3g}",
            str(rows),
            constant.meaning,
            constant.source,
        )
        for constant, rows in zip(DECLARED_SERVING, informed, strict=True)
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
    return section("Constants", header, lines, about=about)


def _metric_cells(
    rows: Sequence[ServingRow], category: Category = Category.KNOWN
) -> tuple[str, ...]:
    """Cells of median, mean and number of errors for each metric."""
    return tuple(_errors_cell(errors_of(rows, metric, category)) for metric in ServingMetric)


def _errors_cell(errors: ErrorStatistics | None) -> str:
    """Cell with median, mean and number of errors."""
    if errors is None:
        return "-"
    return f"{percent(errors.median)}, {percent(errors.mean)} ({errors.n})"


def _categories_section(validation: ServingValidation) -> str:
    """Markdown section with errors of rows not fully described, by the property left open."""
    lines = [
        (category.value, *cells)
        for category in Category
        if {*(cells := _metric_cells(validation.rows, category))} != {"-"}
    ]
    header = ("column", *(metric.value for metric in ServingMetric))
    return section("What the sources leave open", header, lines, about=_FIGURES)


def _groups_section(
    title: str, validation: ServingValidation, key: Callable[[ServingRow], str]
) -> str:
    """Markdown section with errors of times by the group that `key` gives a row."""
    lines: list[Line] = []
    for name, rows in sorted(grouped(validation.rows, key).items()):
        cells: list[str] = []
        for metric in _TIMES:
            errors = errors_of(rows, metric)
            cells += [_errors_cell(errors), percent(errors.bias, sign=True) if errors else "-"]
        if {*cells} != {"-"}:
            lines.append((name, *cells))
    header = ("", *(name for metric in _TIMES for name in (metric.value, "bias")))
    return section(title, header, lines, about=_FIGURES)


def _folds_section(study: ServingStudy) -> str:
    """Markdown section with errors of each metric in each kind of fold."""
    lines = [
        (
            "nothing" if validation.fold == "none" else f"each {validation.fold}",
            *_metric_cells(validation.rows),
        )
        for validation in study.validations
    ]
    about = "Each row predicted with constants fitted without the rows that are held out with it."
    header = ("held out", *(metric.value for metric in ServingMetric))
    return section("Held out", header, lines, about=about)


def _throughput_section(validation: ServingValidation) -> str:
    """Markdown section with errors of throughput by model, engine, device and deployment."""

    def key(row: ServingRow) -> str:
        """Group of a row: model, engine, device and deployment."""
        deployment = print_deployment(row.run.deployment)
        return f"{row.run.model.name}, {engine_and_device(row)}, {deployment}"

    lines: list[Line] = []
    for name, rows in sorted(grouped(validation.rows, key).items()):
        errors = errors_of(rows, ServingMetric.THROUGHPUT, None)
        if errors is not None:
            figures = (percent(errors.median), percent(errors.mean))
            lines.append((name, str(errors.n), *figures, percent(errors.bias, sign=True)))
    header = ("model, engine, device, deployment", "rows", "median", "mean", "bias")
    return section("Throughput", header, lines)


def _far_section(validation: ServingValidation, *, facts: TableFacts, far: float) -> str:
    """Markdown section of the rows with an |error| above the fraction `far`."""

    def line(row: ServingRow) -> Line:
        """Table line of a row."""
        run, measurement = row.run, row.run.measurement
        category = category_of(row, ServingMetric.TTFT)
        open_question = "" if category is Category.KNOWN else category.value
        remark = remark_of(run, facts.remarks) or open_question
        return (
            measurement.source_id,
            measurement.table_or_row,
            run.model.name,
            run.cluster.node.accelerator.name,
            run.version,
            f"`{print_deployment(run.deployment)}`",
            f"{measurement.isl}, {measurement.osl}, {run.concurrency}",
            *(error_cell(row.error(metric)) for metric in ServingMetric),
            f"infeasible: {row.infeasible}" if row.infeasible else remark,
        )

    header = (
        "source",
        "row",
        "model",
        "device",
        "engine",
        "deployment",
        "in, out, in flight",
        *(metric.value for metric in ServingMetric),
        "why",
    )
    return far_section(validation, header, line, far=far, metrics=ServingMetric)
