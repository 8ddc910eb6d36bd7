"""Plans for several numbers of devices, or several batches: as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.screens.comparison_screen import days_text, training_document
from shardwright.report.screens.plan_screen import head, section
from shardwright.report.table_style import plain_table
from shardwright.search.answer_summary import request_lines
from shardwright.search.compared_strategy import Compared
from shardwright.search.repeated_search import Batches, ScalingTable, Trial
from shardwright.search.simulated_strategy import strategy_text
from shardwright.units import format_count, format_percent

KNEE: Final = "<- knee"
KNEE_TEXT: Final = (
    "The knee has the highest efficiency over step time: beyond it, devices that are added lose"
    " more efficiency than they save time."
)
CHOSEN: Final = "<- chosen"


def scaling_document(found: ScalingTable, costs: Sequence[Compared]) -> dict[str, Any]:
    """``plan --devices A..B --json``."""
    return {
        "knee_devices": found.knee,
        "rows": [
            _row(trial)
            | {"efficiency": found.efficiency(trial) if trial.simulation is not None else None}
            for trial in found.trials
        ],
        "costs": [training_document(row) for row in costs],
    }


def render_scaling(found: ScalingTable, costs: Sequence[Compared]) -> RenderableType:
    """A row for each number of devices, with the knee marked; days and dollars where `costs` has
    them.
    """
    fits = [trial for trial in found.trials if trial.simulation is not None]
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
    rows = [_scaled(trial, found, paid) for trial in found.trials]
    assert fits[0].simulation is not None
    numbers = range(len(titles) - 2)
    asked = head([*request_lines(replace(fits[0].simulation.request, max_devices=0)), ("", "")])
    edge = (
        " It is at the end of the range here, or beyond."
        if found.knee == fits[-1].devices and len(fits) > 1
        else ""
    )
    return Group(
        asked,
        plain_table(titles, rows, right=numbers, whole=(len(titles) - 2,)),
        Words(Text(f"\n{KNEE_TEXT}{edge}", style="dim")),
    )


def _scaled(trial: Trial, found: ScalingTable, paid: dict[int, Compared]) -> tuple[str, ...]:
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
        format_percent(found.efficiency(trial)),
        *cost,
        KNEE if trial.devices == found.knee else "",
        strategy_text(trial.simulation),
    )


def batches_document(found: Batches, rates: Sequence[float]) -> dict[str, Any]:
    """``plan --global-batch auto --json``, under ``batches``."""
    return {
        "critical_batch_tokens": found.critical,
        "critical_batch_source": found.source,
        "chosen": found.chosen,
        "rows": [
            _row(trial) | {"useful_tokens_per_s": rate}
            for trial, rate in zip(found.trials, rates, strict=True)
        ],
    }


def render_batches(found: Batches, rates: Sequence[float]) -> RenderableType:
    """A row for each batch, and why the chosen one is."""
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
        Group(plain_table(titles, rows, right=range(5), whole=(5,)), Words(Text(why))),
    )


def _row(trial: Trial) -> dict[str, Any]:
    prediction = trial.simulation.prediction if trial.simulation is not None else None
    return {
        "devices": trial.devices,
        "global_batch": trial.global_batch,
        "strategy": strategy_text(trial.simulation) if trial.simulation is not None else None,
        "step_time_s": prediction.step_time_s if prediction is not None else None,
        "tokens_per_s": prediction.tokens_per_s if prediction is not None else None,
        "no_plan": trial.why or None,
    }
