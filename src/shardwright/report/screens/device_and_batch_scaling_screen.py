"""Screens of plans for several numbers of devices or several global batches; and their JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.screens.strategy_comparison_screen import days_text, training_document
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import labelled_lines, section
from shardwright.search.answer_summary_text import request_lines
from shardwright.search.comparison_row import Compared
from shardwright.search.scaling_and_batch_results import Batches, ScalingTable, Trial
from shardwright.search.simulated_strategy import strategy_text
from shardwright.units import format_count, format_percent

KNEE: Final = "<- knee"
KNEE_TEXT: Final = (
    "The knee has the highest efficiency over step time: beyond it, devices that are added lose"
    " more efficiency than they save time."
)
CHOSEN: Final = "<- chosen"


def scaling_document(scaling: ScalingTable, costs: Sequence[Compared]) -> dict[str, Any]:
    """JSON document of ``plan --devices A..B --json``: trials, efficiency, knee and costs."""
    return {
        "knee_devices": scaling.knee,
        "rows": [
            _trial_document(trial)
            | {"efficiency": scaling.efficiency(trial) if trial.simulation is not None else None}
            for trial in scaling.trials
        ],
        "costs": [training_document(row) for row in costs],
    }


def render_scaling(scaling: ScalingTable, costs: Sequence[Compared]) -> RenderableType:
    """Table of plans by number of devices, with the knee marked, and days and dollars if known."""
    fits = [trial for trial in scaling.trials if trial.simulation is not None]
    paid = {row.devices: row for row in costs}
    titles = [
        "devices",
        "s/step",
        "tokens/s",
        "efficiency",
        *(["days", "cost $"] if paid else []),
        "",
        "strategy",
    ]
    rows = [_scaling_cells(trial, scaling, paid) for trial in scaling.trials]
    assert fits[0].simulation is not None
    numbers = range(len(titles) - 2)
    request_head = labelled_lines(
        [*request_lines(replace(fits[0].simulation.request, max_devices=0)), ("", "")]
    )
    edge = (
        " It is at the end of the range here, or beyond."
        if scaling.knee == fits[-1].devices and len(fits) > 1
        else ""
    )
    return Group(
        request_head,
        plain_table(titles, rows, right=numbers, whole=(len(titles) - 2,)),
        WrappedText(Text(f"\n{KNEE_TEXT}{edge}", style="dim")),
    )


def _scaling_cells(
    trial: Trial, scaling: ScalingTable, paid: dict[int, Compared]
) -> tuple[str, ...]:
    """Cells for one number of devices: step, tokens a second, efficiency, cost, knee, strategy."""
    blanks = ("-",) * (5 if paid else 3)
    if trial.simulation is None:
        return (f"{trial.devices:,}", *blanks, "", f"no plan: {trial.why}")
    cost: tuple[str, ...] = ()
    if paid:
        row = paid[trial.devices]
        cost = (days_text(row), "-" if row.usd is None else format_count(row.usd))
    return (
        f"{trial.devices:,}",
        f"{trial.simulation.prediction.step_time_s:.4g}",
        f"{trial.tokens_per_s:,.0f}",
        format_percent(scaling.efficiency(trial)),
        *cost,
        KNEE if trial.devices == scaling.knee else "",
        strategy_text(trial.simulation),
    )


def batches_document(batches: Batches, rates: Sequence[float]) -> dict[str, Any]:
    """JSON object ``batches``: best plan and useful tokens a second of each global batch."""
    return {
        "critical_batch_tokens": batches.critical,
        "critical_batch_source": batches.source,
        "chosen": batches.chosen,
        "rows": [
            _trial_document(trial) | {"useful_tokens_per_s": rate}
            for trial, rate in zip(batches.trials, rates, strict=True)
        ],
    }


def render_batches(found: Batches, rates: Sequence[float]) -> RenderableType:
    """Table of plans by global batch, and the reason for the chosen batch."""
    rows = [
        (
            f"{trial.global_batch:,}",
            f"{format_count(trial.global_batch * found.seq_len)}",
            (
                f"{trial.simulation.prediction.step_time_s:.4g}"
                if trial.simulation is not None
                else "no plan"
            ),
            f"{trial.tokens_per_s:,.0f}" if trial.simulation is not None else "-",
            f"{rate:,.0f}" if rate else "-",
            CHOSEN if trial.global_batch == found.chosen else "",
        )
        for trial, rate in zip(found.trials, rates, strict=True)
    ]
    titles = ("sequences", "tokens", "s/step", "tokens/s", "useful tokens/s", "")
    why = (
        f"{found.chosen:,} sequences a step have the most useful tokens a second: tokens/s over 1 +"
        f" B / B_crit, with a critical batch of {format_count(found.critical)} tokens"
        f" ({found.source})."
    )
    return section(
        "Global batch",
        Group(plain_table(titles, rows, right=range(5), whole=(5,)), WrappedText(Text(why))),
    )


def _trial_document(trial: Trial) -> dict[str, Any]:
    """JSON object of one trial: devices, batch, strategy, step, tokens a second, or why no plan."""
    prediction = trial.simulation.prediction if trial.simulation is not None else None
    return {
        "devices": trial.devices,
        "global_batch": trial.global_batch,
        "strategy": strategy_text(trial.simulation) if trial.simulation is not None else None,
        "step_time_s": prediction.step_time_s if prediction is not None else None,
        "tokens_per_s": prediction.tokens_per_s if prediction is not None else None,
        "no_plan": trial.why or None,
    }
