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
from shardwright.validation.errors.check_against_limits import BarResult
from shardwright.validation.errors.markdown_sections_shared_by_accuracy_pages import (
    Line,
    error_cell,
    far_section,
    percent,
    remark_of,
    section,
    skipped_section,
)
from shardwright.validation.errors.prediction_errors import ErrorStatistics, grouped
from shardwright.validation.serving.error_limit_results import WaitingResult, serving_limit_results
from shardwright.validation.serving.measured_deployment import Category, ServingRun, ServingValues
from shardwright.validation.serving.serving_errors import (
    ServingRow,
    ServingValidation,
    category_of,
    engine_and_device,
    errors_of,
)
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.table_reader_and_fold_validation import Study
from shardwright.validation.tables.table_facts_from_toml import TableFacts

FAR: Final = 0.5
"""Relative error above which the page lists a row."""
INFORMS: Final = 0.02
"""Least slope at which a row counts as informing a constant."""
_HEAD: Final = """# How accurate are predictions of serving?

This page compares predicted with measured latency and throughput of vLLM, SGLang and TensorRT-LLM,
on published runs. `shardwright validate` writes it (`make accuracy` for the published runs); do not
edit it.

- *TPOT* is the mean time of each output token after the first.
- *TTFT* is the time to the first token: the mean of a run, with its burst of requests at the start.
- *E2E* is TTFT + (tokens - 1) x TPOT.
- *Error* is |predicted / measured - 1|. *Bias* is the median of predicted / measured - 1.
  A negative bias of a time means that the prediction is too fast.
- A run that happened but is predicted not to fit counts as an error of 100 %.
- No number is tuned to one row, one model or one version of an engine.

Rows with an open question are judged apart from the others:

- *mtp unknown*: the source does not tell if the engine ran speculative decoding (MTP).
- *degrees inconsistent*: the parallel degrees of the row contradict each other.
- *precision unknown*: the source does not tell the precision.
- *near capacity*: the requests would fill the KV cache within 20 %. A few per cent of memory then
  decide whether requests wait, so TTFT is judged apart.

Rows that repeat a measurement are left out.
"""
_TIMES: Final = (ServingMetric.TPOT, ServingMetric.TTFT, ServingMetric.E2E)
_FIGURES: Final = "Cells are median error, mean error (number of rows)."
ServingStudy = Study[ServingRun, ServingValues, ServingConstants]


def serving_page(
    study: ServingStudy, *, facts: TableFacts, far: float = FAR, picture: str = ""
) -> str:
    """Markdown page of the accuracy of serving predictions; `picture` is not used.

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
        skipped_section(plain, details=True),
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
        "A *bar* is an error limit that the tests check. Results are the error found, of the error"
        " allowed: **bold** is within the bar, *italic* is beyond it. Only rows without an open"
        " question count."
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
        "The constants are fitted to all rows without an open question, without disaggregated"
        " prefill and without speculative decoding. No constant belongs to one model, engine or"
        " version."
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
    """Cells ``median, mean (number)`` of |errors|, one a metric, of the rows in `category`."""
    return tuple(_errors_cell(errors_of(rows, metric, category)) for metric in ServingMetric)


def _errors_cell(errors: ErrorStatistics | None) -> str:
    """Cell with median and mean error in percent, and the number of errors; "-" without any."""
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
    header = ("question", *(metric.value for metric in ServingMetric))
    return section("Rows with an open question", header, lines, about=_FIGURES)


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
    about = f"The constants were fitted without the rows that are held out. {_FIGURES}"
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
        """Cells of a row: source, model, device, engine, deployment, load, errors, remark."""
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
