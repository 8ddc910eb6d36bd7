"""The `compare` screen: strategies and clusters side by side, fitting first, then fastest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.files.plan_and_simulation_file_contents import simulation_document
from shardwright.hardware.catalog.list_prices import GIVE_A_PRICE
from shardwright.report.screens.step_time_table import part_name, part_order
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import labelled_lines, section
from shardwright.search.answer_summary_text import request_lines
from shardwright.search.comparison_row import Compared
from shardwright.search.simulated_strategy import strategy_text
from shardwright.strategy.text.replace_unprintable_characters import printable
from shardwright.units import (
    MEGA,
    format_bare_seconds,
    format_bytes,
    format_count,
    format_dollars,
    format_percent,
)

SECONDS_PER_DAY: Final = 86400.0
STEP_AFTER_STEP: Final = "step after step: no failures, checkpoints or evaluation"


def comparison_document(rows: Sequence[Compared]) -> dict[str, Any]:
    """JSON document of ``compare --json``: simulations with their training run's time and cost."""
    return {
        "strategies": [simulation_document(row.simulation) for row in rows],
        "costs": [training_document(row) for row in rows],
    }


def training_document(row: Compared) -> dict[str, Any]:
    """JSON object of a training run under one strategy: prices, seconds and dollars."""
    return {
        "cluster": row.simulation.request.cluster,
        "devices": row.devices,
        "prices": [
            {"of": p.of, "usd_per_device_hour": p.usd_per_hour, "source": p.source}
            for p in row.prices
        ],
        "usd_per_hour": row.usd_per_hour,
        "usd_per_token": row.usd_per_token,
        "tokens": row.tokens or None,
        "training_s": row.seconds or None,
        "training_usd": row.usd if row.tokens else None,
    }


def render_training(row: Compared) -> RenderableType:
    """Section with days and dollars of training under one strategy, and the sources of prices."""
    cost = (
        "no price is known of these devices (--price USD a device-hour)"
        if row.usd is None
        else format_dollars(row.usd)
    )
    lines = [f"{days_text(row)} days, {cost}", *_price_lines([row])]
    return section(
        f"Training on {format_count(row.tokens)} tokens, {STEP_AFTER_STEP}", Text("\n".join(lines))
    )


def days_text(row: Compared) -> str:
    """Format the days of the training run with one decimal."""
    return f"{row.seconds / SECONDS_PER_DAY:,.1f}"


def by_step_time(rows: Sequence[Compared]) -> list[Compared]:
    """Sort rows: those that fit in memory first, each part by ascending step time."""
    return sorted(
        rows,
        key=lambda row: (not row.simulation.prediction.fits, row.simulation.prediction.step_time_s),
    )


def render_comparison(rows: Sequence[Compared]) -> RenderableType:
    """The `compare` screen: time and cost of each row, strategies, prices, time breakdown."""
    chosen = by_step_time(rows)
    columns = _columns(chosen)
    titles = [title for title, _ in columns]
    cells = list(zip(*(values for _, values in columns), strict=True))
    times = _breakdown_rows(chosen)
    strategies = [
        (str(rank), strategy_text(row.simulation)) for rank, row in enumerate(chosen, start=1)
    ]
    several = len({row.simulation.request.cluster for row in chosen}) > 1
    places = {title: place for place, title in enumerate(titles)}
    return Group(
        *(
            []
            if several
            else [labelled_lines([*request_lines(chosen[0].simulation.request), ("", "")])]
        ),
        plain_table(
            titles,
            cells,
            right=[place for title, place in places.items() if title in _NUMBERS],
            whole=(0, len(titles) - 1),
            spare=[
                places[title]
                for title in ("tok/s/dev", "MFU", "slower", "$/Mtok", "memory")
                if title in places
            ],
        ),
        section("Strategies", plain_table(("", ""), strategies)),
        *_token_and_price_notes(chosen),
        section(
            "Where the time goes, in seconds",
            plain_table(
                ("", *map(str, range(1, len(chosen) + 1))),
                times,
                right=range(1, len(chosen) + 1),
                spare=range(len(chosen), 1, -1),
            ),
        ),
    )


_NUMBERS: Final = frozenset(
    ("s/step", "slower", "tok/s/dev", "MFU", "memory", "$/dev/h", "$/Mtok", "days", "cost $")
)


def _columns(rows: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """(title, cells) of every column; the cluster is a column only where clusters differ."""
    predictions = [row.simulation.prediction for row in rows]
    best = predictions[0].step_time_s
    clusters = [row.simulation.request.cluster for row in rows]
    columns = [
        ("", [str(rank) for rank in range(1, len(rows) + 1)]),
        ("s/step", [f"{prediction.step_time_s:.4g}" for prediction in predictions]),
        (
            "slower",
            [_change_percent(prediction.step_time_s / best - 1) for prediction in predictions],
        ),
        ("tok/s/dev", [f"{prediction.tokens_per_s_per_device:,.0f}" for prediction in predictions]),
        ("MFU", [format_percent(prediction.mfu_causal) for prediction in predictions]),
        ("memory", [format_bytes(prediction.allocated_bytes) for prediction in predictions]),
        ("fits", ["yes" if prediction.fits else "no" for prediction in predictions]),
        (
            "$/dev/h",
            [
                _dollars(None if row.usd_per_hour is None else row.usd_per_hour / row.paid_devices)
                for row in rows
            ],
        ),
        (
            "$/Mtok",
            [
                _dollars(None if row.usd_per_token is None else row.usd_per_token * MEGA)
                for row in rows
            ],
        ),
    ]
    if rows[0].tokens:
        columns += [
            ("days", [days_text(row) for row in rows]),
            ("cost $", ["-" if row.usd is None else format_count(row.usd) for row in rows]),
        ]
    return columns + ([("cluster", clusters)] if len(set(clusters)) > 1 else [])


def _change_percent(change: float) -> str:
    """Signed percentage of a step's change; negative for a plan that is faster but does not fit."""
    return f"{'-' if change < 0 else '+'}{format_percent(abs(change))}"


def _dollars(value: float | None) -> str:
    """Dollars with four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def _breakdown_rows(rows: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Rows (part of the step, seconds under each strategy), without parts that are 0 in all."""
    parts = [dict(row.simulation.prediction.breakdown_s) for row in rows]
    shown = [
        (part_name(name), *(format_bare_seconds(part.get(name, 0.0)) for part in parts))
        for name, _ in sorted(
            {name: 0.0 for part in parts for name in part}.items(), key=part_order
        )
    ]
    return [row for row in shown if set(row[1:]) != {format_bare_seconds(0.0)}]


def _token_and_price_notes(rows: Sequence[Compared]) -> list[RenderableType]:
    """Lines of text on the number of training tokens and the source of each price."""
    tokens = rows[0].tokens
    lines = [f"{format_count(tokens)} tokens, {STEP_AFTER_STEP}"] if tokens else []
    lines += _price_lines(rows)
    return [Text("\n" + "\n".join(lines), style="dim")] if lines else []


def _price_lines(rows: Sequence[Compared]) -> list[str]:
    """A line for each price with its source, and for each cluster without a price."""
    prices = dict.fromkeys(price for row in rows for price in row.prices)
    clusters_without_price = dict.fromkeys(
        row.simulation.request.cluster for row in rows if not row.prices
    )
    return [
        *(
            f"{price.usd_per_hour:.4g} $ a device-hour: {price.of}, {price.source}"
            for price in prices
        ),
        *(
            f"no price is known of {printable(cluster, length=60)}: --price 2.5, or {GIVE_A_PRICE}"
            for cluster in clusters_without_price
        ),
    ]
