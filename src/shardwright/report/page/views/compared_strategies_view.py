"""View of a comparison: steps of strategies as bars of their parts, with costs."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.bar_rows import BarRow, append_bar_rows
from shardwright.report.page.charts.series_legend import append_legend
from shardwright.report.page.markup.value_tables import (
    ArrayColumn,
    Column,
    append_array_table,
    append_table,
)
from shardwright.report.page.markup.view import View

_COLUMNS: Final = (
    Column(field="cluster", heading="cluster"),
    Column(field="strategy", heading="strategy"),
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="slower", heading="slower than the fastest", form="signed_percent"),
    Column(field="tokens_per_s_per_device", heading="tokens/s of a device", form="count"),
    Column(field="mfu", heading="MFU", form="percent"),
    Column(field="reserved_bytes", heading="memory", form="bytes"),
    Column(field="fits", heading="fits", form="yes_no"),
)
_COST_COLUMNS: Final = (
    Column(field="usd_per_device_hour", heading="a device-hour", form="dollars"),
    Column(field="usd_per_million_tokens", heading="a million tokens", form="dollars"),
)
_RUN_COLUMNS: Final = (
    Column(field="days", heading="training run", form="days"),
    Column(field="usd", heading="cost of the run", form="dollars"),
)
_PRICE_COLUMNS: Final = (
    Column(field="of", heading="price of"),
    Column(field="usd_per_device_hour", heading="a device-hour", form="dollars"),
    Column(field="source", heading="source"),
)
_LEAST_GAIN: Final = 1e-3
"""Least fraction of the step for which another plan is proposed."""


def compared_strategies_view(report_json: Any) -> View:
    """View of compared strategies: fastest and cheapest, bars of step parts, tables, prices."""
    return View(
        name="comparison",
        question="Which of these is best?",
        reading=_reading(report_json["comparison"]),
        next_change=_next_change(report_json["comparison"]),
        chart=_append_chart,
        tables=_append_tables,
        tables_open=True,
    )


def _reading(comparison_json: Any) -> str:
    """Template of the sentences that name the fastest and the cheapest strategy."""
    rows, cheapest = comparison_json["rows"], comparison_json["cheapest"]
    place = "{/comparison/rows/0/strategy} on {/comparison/rows/0/cluster}"
    if not rows[0]["fits"]:
        return f"No strategy fits in memory; the fastest would be {place}."
    fastest = f"The fastest that fits is {place}, with {{/comparison/rows/0/step_s:seconds}} a step"
    if len(rows) > 1:
        fastest += "; the next takes {/comparison/rows/1/slower:percent} longer"
    if cheapest is None:
        return f"{fastest}."
    if cheapest == 0:
        return (
            f"{fastest}. It is also the cheapest:"
            " {/comparison/rows/0/usd_per_million_tokens:dollars} for a million tokens."
        )
    row = f"/comparison/rows/{cheapest}"
    return (
        f"{fastest}. The cheapest is {{{row}/strategy}} on {{{row}/cluster}}:"
        f" {{{row}/usd_per_million_tokens:dollars}} for a million tokens, against"
        " {/comparison/rows/0/usd_per_million_tokens:dollars} of the fastest."
    )


def _next_change(comparison_json: Any) -> str:
    """Template of the sentence on the best plan found for the fastest row's request; else empty."""
    searched = comparison_json["searched"]
    if searched is None:
        return ""
    command = " Command: {/comparison/searched/command:command}" if searched["command"] else ""
    if searched["gain"] < _LEAST_GAIN and comparison_json["rows"][0]["fits"]:
        return (
            "Keep the fastest: a search finds no faster plan for {/comparison/searched/cluster}."
            f"{command}"
        )
    return (
        "{/comparison/searched/strategy} is the best plan for {/comparison/searched/cluster}:"
        " {/comparison/searched/step_s:seconds} a step, {/comparison/searched/gain:percent} less."
        f"{command}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append a bar of the step's parts for each strategy, the longest step as wide as the page."""
    rows = report_json["comparison"]["rows"]
    several = len({row["cluster"] for row in rows}) > 1
    bars = []
    for number, row in enumerate(rows):
        where = f" on {{/comparison/rows/{number}/cluster}}" if several else ""
        misfit = "" if row["fits"] else " (does not fit)"
        pointer = f"/comparison/rows/{number}/usd_per_million_tokens"
        priced = row["usd_per_million_tokens"] is not None
        cost = f", {{{pointer}:dollars}} for a million tokens" if priced else ""
        bars.append(
            BarRow(
                label=f"{{/comparison/rows/{number}/step_s:seconds}}{cost}:"
                f" {{/comparison/rows/{number}/strategy}}{where}{misfit}",
                lengths=row["part_lengths"],
                description="Parts of the step; the table has their seconds",
            )
        )
    append_bar_rows(parent, report_json, bars)
    names = [
        f"/comparison/part_names/{k}" for k in range(len(report_json["comparison"]["part_names"]))
    ]
    append_legend(parent, report_json, names)


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the tables of the strategies, of the parts and of the prices."""
    comparison = report_json["comparison"]
    priced = any(row["usd_per_million_tokens"] is not None for row in comparison["rows"])
    run = any(row["days"] is not None for row in comparison["rows"])
    columns = _COLUMNS + (_COST_COLUMNS if priced else ()) + (_RUN_COLUMNS if run else ())
    append_table(
        parent,
        report_json,
        "/comparison/rows",
        columns,
        caption="Strategies that fit first, the fastest first",
    )
    append_array_table(
        parent,
        report_json,
        [
            ArrayColumn(
                values="/comparison/part_names", heading="/comparison/part_heading", form="text"
            ),
            *(
                ArrayColumn(
                    values=f"/comparison/rows/{number}/part_seconds",
                    heading=f"/comparison/rows/{number}/strategy",
                    form="seconds",
                )
                for number in range(len(comparison["rows"]))
            ),
        ],
        caption="Parts of the step, in the order of the strategies",
    )
    if comparison["prices"]:
        append_table(
            parent, report_json, "/comparison/prices", _PRICE_COLUMNS, caption="Prices and sources"
        )
