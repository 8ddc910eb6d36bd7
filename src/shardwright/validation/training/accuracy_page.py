"""Markdown page of the accuracy of predicted training runs (docs/accuracy.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from shardwright.hardware.catalog.fitted_training_constants import DECLARED, SHIPPED, Constants
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.errors.check_against_limits import BarResult, errors_against_limit
from shardwright.validation.errors.markdown_sections_shared_by_accuracy_pages import (
    Line,
    error_cell,
    far_section,
    percent,
    remark_of,
    section,
    skipped_section,
)
from shardwright.validation.errors.prediction_errors import error_statistics, grouped, source_of
from shardwright.validation.table_reader_and_fold_validation import Study
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts_from_toml import ErrorLimit, Remark, TableFacts
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.sweep_and_scaling_checks import (
    TrainingRow,
    TrainingValidation,
    coverage,
    errors_by_model_kind,
    rank_correlation,
    sweeps,
    weak_scaling,
)
from shardwright.validation.training.training_table_columns import TrainingMetric

FAR: Final = 0.15
"""Relative error above which the page lists a row."""
BOOTSTRAP_SEED: Final = 0
TrainingStudy = Study[TrainingRun, Prediction, Constants]

_HEAD: Final = """# How accurate are predictions of training runs?

This page compares predicted with measured step times and memory, on runs whose full configuration is published. `shardwright validate`
writes it (`make accuracy` for the published runs); do not edit it.

- *Error* is |predicted / measured - 1|, of seconds a step or of bytes. *Bias* is the mean of predicted / measured - 1.
  A negative bias means that predictions are too fast, or too small.
- A run that happened but is predicted not to fit counts as an error of 100 %.
- No number is tuned to one row, one source or one framework.

Each row is predicted several times, with constants that were fitted to different rows:

| column | constants are fitted to |
| --- | --- |
| in sample | all rows: these are the shipped constants. Runs with a mechanism that is known to be missing do not take part in any fit, but are judged in all columns (`unfitted` in benchmarks/published/facts/bars.toml lists them with the reasons) |
| model | for a model of a source: all rows but those of this model in this source |
| source | for a laboratory or vendor: the rows of all others. Its framework is described from documents alone. Expect this error on your own cluster |
| other base | as *source*, but the framework is replaced by the nearest described one of another framework. Expect this error for a framework that nobody has described |
| accelerator | for an accelerator: the rows of all others |

A constant that the remaining rows do not inform keeps its prior.
"""  # noqa: E501 - the text is as the page has it


def accuracy_page(
    study: TrainingStudy, *, facts: TableFacts, far: float = FAR, picture: str = ""
) -> str:
    """Markdown page of the accuracy of training predictions; `picture`: link of its image, or "".

    Args:
        facts: bars, orders, scalings and remarks about the rows.
        far: error above which a row is listed, as a fraction.
        picture: file name of the scatter plot; empty = none.
    """
    plain = study.validation("none")
    parts = [
        _HEAD,
        f"![predicted against measured]({picture})\n" if picture else "",
        _unseen_frameworks_section(study),
        _limits_section(study, bars=facts.bars),
        _checks_section(study, facts=facts),
        _constants_section(study),
        _sources_section(study, TrainingMetric.TIME),
        _sources_section(study, TrainingMetric.MEMORY),
        _far_section(plain, far=far, remarks=facts.remarks),
        skipped_section(plain, details=False),
        _failures_section(plain),
    ]
    return "\n".join(part for part in parts if part)


def fold_name(validation: TrainingValidation) -> str:
    """Name of a kind of fold on the accuracy page: ``in sample`` for none, else its own."""
    return "in sample" if validation.fold == "none" else validation.fold


def _unseen_frameworks_section(study: TrainingStudy) -> str:
    """Markdown section with mean errors by row and by source, dense and with experts, by fold."""
    lines: list[Line] = []
    for name, experts in (("dense", False), ("with experts", True)):
        kinds = [
            errors_by_model_kind(validation, experts=experts) for validation in study.validations
        ]
        cells = (f"{percent(kind.by_row)}, {percent(kind.by_source)}" for kind in kinds)
        lines.append((name, str(kinds[0].n), str(kinds[0].sources), *cells))
    about = (
        "First figure: mean error of all rows. Second figure: mean over the sources of each"
        " source's mean error. For a cluster and framework that are in no row, read the column"
        " *source*."
    )
    header = ("models", "rows", "sources", *map(fold_name, study.validations))
    return section("Mean errors", header, lines, about=about)


def training_limit_result(bar: ErrorLimit, validation: TrainingValidation) -> BarResult:
    """Errors that a limit selects, of memory or step time, beside its limits in this fold."""
    metric = TrainingMetric.MEMORY if bar.memory else bar.metric or TrainingMetric.TIME
    return errors_against_limit(bar, validation.rows, metric=metric, fold=validation.fold)


def _limits_section(study: TrainingStudy, *, bars: Sequence[ErrorLimit]) -> str:
    """Markdown section with the results of all error limits in each kind of fold."""
    lines: list[Line] = []
    for bar in bars:
        results = [training_limit_result(bar, validation) for validation in study.validations]
        limits = ", ".join(
            f"{fold} {'' if statistic == 'mean' else f'{statistic} '}{percent(limit)}"
            for fold, of_fold in bar.limits.items()
            for statistic, limit in of_fold.items()
        )
        cells = map(_limit_cell, results)
        lines.append((bar.name, str(results[0].n), *cells, limits, bar.peer or "-"))
    header = ("rows", "n", *map(fold_name, study.validations), "bar", "best peer")
    about = (
        "A *bar* is an error limit that the tests check. Cells are mean error (bias): **bold** is"
        " within the bar, *italic* is beyond it. *Best peer* is the published error of another"
        " tool."
    )
    return section("Bars", header, lines, about=about)


def _limit_cell(result: BarResult) -> str:
    """Cell ``mean (bias)`` of a result: bold within its limit, italic beyond; ``-`` if no rows."""
    if result.errors is None:
        return "-"
    text = f"{percent(result.errors.mean)} ({percent(result.errors.bias, sign=True)})"
    if not result.limits:
        return text
    return f"**{text}**" if result.holds else f"*{text}*"


def _checks_section(study: TrainingStudy, *, facts: TableFacts) -> str:
    """Markdown section with the checks of intervals, sweeps, plan order and weak scaling."""
    lines = [
        (fold_name(validation), *check)
        for validation in study.validations
        for check in _check_results(validation, facts=facts)
    ]
    about = (
        "*80 % interval*: share of the rows whose measurement lies inside the predicted interval."
        " *Sweeps*: several strategies were measured for the same job. *Spearman*: rank correlation"
        " of predicted and measured step times. *Weak scaling*: step time on most devices over that"
        " on fewest."
    )
    return section("Order, scaling, intervals", ("column", "check", "result"), lines, about=about)


def _check_results(
    validation: TrainingValidation, *, facts: TableFacts
) -> Iterable[tuple[str, str]]:
    """Yield (name, result text) of the checks of intervals, sweeps, order and weak scaling."""
    covered = coverage(validation.rows)
    yield (
        "80 % interval",
        f"{percent(covered.inside)} of {covered.n} rows inside, half-width"
        f" {covered.width:.2f} x mean error",
    )
    if found_sweeps := sweeps(validation):
        mean = float(np.mean([sweep.regret for sweep in found_sweeps]))
        worst = max(found_sweeps, key=lambda sweep: sweep.regret)
        yield (
            "sweeps",
            f"plan predicted best takes {percent(mean)} more time than the best on average over"
            f" {len(found_sweeps)} sweeps; worst {percent(worst.regret)} ({worst.name})",
        )
    for order in facts.orders:
        rows = [
            row for row in validation.rows if order.where.matches(cells_of(row.run.measurement))
        ]
        if len(rows) > 1:
            rank = rank_correlation(rows, generator=np.random.default_rng(BOOTSTRAP_SEED))
            yield (
                order.name,
                f"Spearman {rank.value:.3f} over {rank.n} plans, 80 % bootstrap {rank.low:.3f}"
                f" to {rank.high:.3f}",
            )
    for check in facts.scalings:
        scaling = weak_scaling(validation, check)
        if scaling is not None:
            yield (
                f"weak scaling, {scaling.name}",
                f"T({scaling.most})/T({scaling.fewest}) predicted {scaling.predicted:.3f}, measured"
                f" {scaling.measured:.3f}",
            )


def _constants_section(study: TrainingStudy) -> str:
    """Markdown section with the fitted constants, their intervals and priors."""
    fit = study.fitted.report
    lines = [
        (
            constant.name,
            constant.owner,
            f"{getattr(SHIPPED, constant.name):.4g}",
            f"{fit.low[constant.name]:.4g} to {fit.high[constant.name]:.4g}" if fit else "-",
            str(fit.informed[constant.name]) if fit else "-",
            f"{constant.prior:.4g}",
            constant.meaning,
            constant.source,
        )
        for constant in DECLARED
    ]
    header = (
        "constant",
        "owner",
        "shipped",
        "80 % interval",
        "rows that move it",
        "prior",
        "meaning",
        "source of the prior",
    )
    return section(
        "Fitted constants", header, lines, about=f"{len(DECLARED)} constants are fitted."
    )


def _sources_section(study: TrainingStudy, metric: TrainingMetric) -> str:
    """Markdown section with errors by source; of time in all folds, of memory in sample only."""
    of_time = metric is TrainingMetric.TIME
    plain, *others = study.validations if of_time else study.validations[:1]
    held_out = [grouped(validation.rows, source_of) for validation in others]
    lines: list[Line] = []
    for source, rows in grouped(plain.rows, source_of).items():
        errors = error_statistics(rows, metric)
        if errors is None:
            continue
        means = [error_statistics(groups.get(source, ()), metric) for groups in held_out]
        lines.append(
            (
                source,
                str(errors.n),
                *map(percent, (errors.mean, errors.median, errors.worst)),
                percent(errors.bias, sign=True),
                *(percent(found.mean) if found else "-" for found in means),
                *((percent(coverage(rows).inside),) if of_time else ()),
                str(sum(bool(row.infeasible) for row in rows)),
            )
        )
    header = (
        "source",
        "rows",
        "mean",
        "median",
        "worst",
        "bias",
        *(f"mean, {validation.fold}" for validation in others),
        *(("in interval",) if of_time else ()),
        "called infeasible",
    )
    return section(f"{metric.value.capitalize()} by source", header, lines)


def _far_section(validation: TrainingValidation, *, far: float, remarks: Sequence[Remark]) -> str:
    """Markdown section of the rows with an |error| above the fraction `far`."""

    def line(row: TrainingRow) -> Line:
        """Cells of a row: source, model, devices, strategy, runtime, errors, remark."""
        run, measurement = row.run, row.run.measurement
        return (
            measurement.source_id,
            measurement.table_or_row,
            measurement.model_name,
            f"{run.cluster.num_devices} x {measurement.gpu}",
            f"`{print_grid(run.grid)}`",
            run.runtime,
            *(error_cell(row.error(metric)) for metric in TrainingMetric),
            f"infeasible: {row.infeasible}" if row.infeasible else remark_of(run, remarks),
        )

    header = ("source", "row", "model", "devices", "strategy", "runtime", "time", "memory", "why")
    return far_section(validation, header, line, far=far, metrics=TrainingMetric)


def _failures_section(validation: TrainingValidation) -> str:
    """Markdown section: how many out-of-memory runs are predicted not to fit; empty without any."""
    if not validation.failures:
        return ""
    return (
        f"## Configurations that did not fit\n\n{validation.predicted_failures} of"
        f" {len(validation.failures)} are predicted not to fit.\n"
    )
