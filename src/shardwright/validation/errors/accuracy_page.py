"""The page docs/accuracy.md, written from a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from shardwright.hardware.catalog.constants import DECLARED, SHIPPED
from shardwright.validation.errors.error_limits import (
    BarResult,
    by_kind,
    coverage,
    judge_bar,
    rank_correlation,
    selected,
    sweeps,
    weak_scaling,
)
from shardwright.validation.errors.errors_by_fold import Study
from shardwright.validation.errors.markdown_tables import far_rows, percent, table
from shardwright.validation.errors.prediction_errors import (
    ErrorStatistics,
    SourceResult,
    Validation,
)
from shardwright.validation.tables.table_facts import Bar, Facts, Remark

FAR: Final = 0.15
BOOTSTRAP_SEED: Final = 0

_HEAD: Final = """# Accuracy

Predicted against measured, on published runs with a full configuration. This page is written by `make accuracy`; do not edit it.

Error is |predicted / measured - 1| on seconds a step or on bytes; bias is its mean with sign (minus: predicted too fast, or too small).
A run that happened and is called infeasible counts as 100 %. Nothing is tuned per row, per source or per framework.

Columns: *in sample*, with the shipped constants, which were fitted to all rows but those of runs with a mechanism that is known to be
missing (`unfitted` in benchmarks/published/facts/bars.toml says which and why; they are judged in all columns); *model*, each model of
each source predicted with constants fitted without it; *source*, each laboratory or vendor predicted with constants fitted without all of
its rows, its framework described from documents alone: what a stranger should expect; *other base*, the same under the nearest base of
another framework, for whom nobody has described theirs; *accelerator*, each accelerator predicted with constants fitted on the others. A
constant that the remaining rows do not inform is then its prior.
"""  # noqa: E501 - the text is as the page has it


def accuracy_page(study: Study, *, facts: Facts, far: float = FAR, picture: str = "") -> str:
    """Markdown text.

    Args:
        facts: its bars, orders, scalings and remarks.
        far: rows further off (a fraction) are listed.
        picture: file name of the scatter plot; empty = none.
    """
    plain = study.validation("none")
    parts = [
        _HEAD,
        f"![predicted against measured]({picture})\n" if picture else "",
        _unseen(study),
        _bars(study, bars=facts.bars),
        _checks(study, facts=facts),
        _constants(study),
        _sources(study, memory=False),
        _sources(study, memory=True),
        _far(plain, far=far, remarks=facts.remarks),
        _skipped(plain),
        _failures(plain),
    ]
    return "\n".join(part for part in parts if part)


def _unseen(study: Study) -> str:
    """What a stack gets that was never seen: all sources together."""
    header = (
        "models",
        "rows",
        "sources",
        *(f"{v.fold if v.fold != 'none' else 'in sample'}" for v in study.validations),
    )
    lines = []
    for experts in (False, True):
        kinds = [by_kind(v, experts=experts) for v in study.validations]
        cells = (f"{percent(kind.by_row)}, {percent(kind.by_source)}" for kind in kinds)
        lines.append(
            ("with experts" if experts else "dense", str(kinds[0].n), str(kinds[0].sources), *cells)
        )
    about = (
        "Mean error of all rows, and mean over sources of the mean error of each. A stack that was"
        " never seen gets *source*."
    )
    return f"## Stacks never seen\n\n{about}\n\n" + table(header, lines)


def _bars(study: Study, *, bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    header = (
        "rows",
        "n",
        *(f"{v.fold if v.fold != 'none' else 'in sample'}" for v in study.validations),
        "bar",
        "best peer",
    )
    lines = []
    for bar in bars:
        results = [judge_bar(bar, v) for v in study.validations]
        limits = ", ".join(f"{fold} {percent(limit)}" for fold, limit in bar.limits.items())
        lines.append(
            (bar.name, str(results[0].n), *(_bar_cell(r) for r in results), limits, bar.peer or "-")
        )
    return "## Bars\n\nMean error (bias); **bold** holds its bar, *italic* misses it.\n\n" + table(
        header, lines
    )


def _bar_cell(result: BarResult) -> str:
    if not result.n:
        return "-"
    text = f"{percent(result.mean)} ({percent(result.bias, sign=True)})"
    if result.limit == float("inf"):
        return text
    return f"**{text}**" if result.holds else f"*{text}*"


def _checks(study: Study, *, facts: Facts) -> str:
    lines: list[tuple[str, ...]] = []
    for v in study.validations:
        fold = "in sample" if v.fold == "none" else v.fold
        inside = coverage(v.rows)
        lines.append(
            (
                fold,
                "80 % interval",
                (
                    f"{percent(inside.inside)} of {inside.n} rows inside, half-width"
                    f" {inside.width:.2f} x mean error"
                ),
            )
        )
        plans = sweeps(v)
        if plans:
            mean, worst = (
                float(np.mean([s.regret for s in plans])),
                max(plans, key=lambda s: s.regret),
            )
            text = (
                f"plan predicted best is {percent(mean)} slower than the best on average over"
                f" {len(plans)} sweeps"
            )
            lines.append((fold, "sweeps", f"{text}; worst {percent(worst.regret)} ({worst.name})"))
        for order in facts.orders:
            rows = [r for r in v.rows if selected(r.case.measurement, order.where)]
            if len(rows) > 1:
                rank = rank_correlation(rows, generator=np.random.default_rng(BOOTSTRAP_SEED))
                text = (
                    f"Spearman {rank.value:.3f} over {rank.n} plans, 80 % bootstrap {rank.low:.3f}"
                    f" to {rank.high:.3f}"
                )
                lines.append((fold, order.name, text))
        for scaling in facts.scalings:
            found = weak_scaling(v, scaling)
            if found is not None:
                text = (
                    f"T({found.most})/T({found.fewest}) predicted {found.predicted:.3f}, measured"
                    f" {found.measured:.3f}"
                )
                lines.append((fold, f"weak scaling, {found.name}", text))
    return "## Order, scaling, intervals\n\n" + table(("fold", "what", "result"), lines)


def _constants(study: Study) -> str:
    lines = []
    for d in DECLARED:
        fitted = study.fit
        spread = f"{fitted.low[d.name]:.4g} to {fitted.high[d.name]:.4g}" if fitted else "-"
        rows = str(fitted.informed[d.name]) if fitted else "-"
        lines.append(
            (
                d.name,
                d.owner,
                f"{getattr(SHIPPED, d.name):.4g}",
                spread,
                rows,
                f"{d.prior:.4g}",
                d.meaning,
                d.source,
            )
        )
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
    return f"## Fitted constants\n\n{len(DECLARED)} in all.\n\n" + table(header, lines)


def _sources(study: Study, *, memory: bool) -> str:
    folds = [v for v in study.validations if not memory or v.fold == "none"]
    by_fold = [{s.source_id: s for s in v.by_source} for v in folds]
    lines: list[tuple[str, ...]] = []
    for source in by_fold[0].values():
        errors = _errors(source, memory=memory)
        if errors is None:
            continue
        figures = (
            percent(errors.mean),
            percent(errors.median),
            percent(errors.worst),
            percent(errors.bias, sign=True),
        )
        held_out = tuple(
            _mean(others.get(source.source_id), memory=memory) for others in by_fold[1:]
        )
        inside = coverage(
            [r for r in folds[0].rows if r.case.measurement.source_id == source.source_id]
        )
        lines.append(
            (
                source.source_id,
                str(errors.n),
                *figures,
                *held_out,
                *(() if memory else (percent(inside.inside),)),
                str(source.infeasible),
            )
        )
    if not lines:
        return ""
    names = tuple(f"mean, {v.fold}" for v in folds[1:])
    header = (
        "source",
        "rows",
        "mean",
        "median",
        "worst",
        "bias",
        *names,
        *(() if memory else ("in interval",)),
        "called infeasible",
    )
    return (
        ("## Memory by source" if memory else "## Time by source") + "\n\n" + table(header, lines)
    )


def _errors(source: SourceResult, *, memory: bool) -> ErrorStatistics | None:
    return source.memory if memory else source.time


def _mean(source: SourceResult | None, *, memory: bool) -> str:
    errors = _errors(source, memory=memory) if source is not None else None
    return percent(errors.mean) if errors is not None else "-"


def _far(validation: Validation, *, far: float, remarks: Sequence[Remark]) -> str:
    title = f"## Rows more than {100 * far:.0f} % off\n\n"
    lines = far_rows(validation, far=far, remarks=remarks)
    if not lines:
        return f"{title}None.\n"
    header = ("source", "row", "model", "devices", "strategy", "runtime", "time", "memory", "why")
    return f"{title}{len(lines)} of {len(validation.rows)}.\n\n" + table(header, lines)


def _skipped(validation: Validation) -> str:
    counts = Counter((skip.measurement.source_id, skip.reason.value) for skip in validation.skipped)
    if not counts:
        return ""
    lines: list[tuple[str, ...]] = [
        (source, reason, str(count)) for (source, reason), count in sorted(counts.items())
    ]
    return f"## Skipped rows\n\n{len(validation.skipped)} rows, by source and reason.\n\n" + table(
        ("source", "reason", "rows"), lines
    )


def _failures(validation: Validation) -> str:
    if not validation.failures:
        return ""
    right = sum(1 for failure in validation.failures if failure.predicted_infeasible)
    return (
        f"## Configurations that did not fit\n\n{right} of {len(validation.failures)} are predicted"
        " not to fit.\n"
    )
