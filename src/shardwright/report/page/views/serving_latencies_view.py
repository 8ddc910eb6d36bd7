"""View of serving: latencies by share of requests, throughput, and memory of the workers."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.bar_rows import BarRow, append_bar_rows
from shardwright.report.page.charts.line_chart import append_line_chart, append_line_table
from shardwright.report.page.charts.series_legend import append_legend_words
from shardwright.report.page.charts.serving_card import append_serving_card
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

LATENCY_COLUMNS: Final = (
    Column(field="name", heading="latency"),
    Column(field="mean_s", heading="mean", form="seconds"),
    Column(field="p50_s", heading="half of the requests", form="seconds"),
    Column(field="p90_s", heading="nine of ten", form="seconds"),
    Column(field="p99_s", heading="ninety-nine of a hundred", form="seconds"),
)
_PART_COLUMNS: Final = (
    Column(field="name", heading="part of the iterations"),
    Column(field="seconds", heading="seconds", form="seconds"),
    Column(field="share", heading="share", form="percent"),
)
_POOL_COLUMNS: Final = (
    Column(field="role", heading="workers"),
    Column(field="workers", heading="number", form="count"),
    Column(field="weights", heading="weights", form="bytes"),
    Column(field="activations", heading="activations", form="bytes"),
    Column(field="others", heading="other memory", form="bytes"),
    Column(field="cache", heading="cache", form="bytes"),
    Column(field="cache_used", heading="most of the cache in use", form="percent"),
    Column(field="capacity", heading="device", form="bytes"),
)


_MEMORY_PARTS: Final = (
    "weights",
    "activations",
    "other memory",
    "cache in use at most",
    "cache that stays free",
)
"""Words for the segments of a memory bar, in the order of `PoolMemory.shares`."""


def serving_latencies_view(report_json: Any) -> View:
    """View of a deployment's latencies, throughput and memory; another load as next change."""
    serving = report_json["serving"]
    return View(
        name="serving",
        question="What do users see?",
        reading=serving_reading(serving),
        next_change=_next_change(serving),
        chart=_append_chart,
        tables=_append_tables,
        tables_open=True,
    )


def serving_reading(serving_json: Any) -> str:
    """Template of the sentences on latency, throughput and targets."""
    first, token, _ = serving_json["latencies"]
    latency = (
        "No request was served."
        if first["p99_s"] is None
        else "Of a hundred requests, ninety-nine have their first token within"
        " {/serving/latencies/0/p99_s:seconds}"
    )
    if token["mean_s"] is not None:
        latency += (
            ", and each further token takes {/serving/latencies/1/mean_s:seconds} in the mean"
        )
    targets = (
        ""
        if not serving_json["slo"]
        else " {/serving/kept:percent} of the requests meet the targets {/serving/slo}."
    )
    refused = (
        "" if not serving_json["refused"] else " {/serving/refused:count} requests were refused."
    )
    return (
        f"{latency.rstrip('.')}. {{/serving/deployment}} gives {{/serving/tokens_per_s:count}}"
        " tokens/s, {/serving/tokens_per_s_per_device:number} a device, with"
        f" {{/serving/queue:number}} requests waiting in the mean.{targets}{refused}"
    )


def _next_change(serving_json: Any) -> str:
    """Template of the sentence on the same deployment under another load; empty without one."""
    other = serving_json["other"]
    if other is None:
        return ""
    slower = (
        ""
        if other["slower"] is None
        else ", and a further token takes {/serving/other/token_s:seconds}"
        " ({/serving/other/slower:signed_percent})"
    )
    return (
        "With {/serving/other/concurrency:count} requests in flight the deployment gives"
        " {/serving/other/tokens_per_s:count} tokens/s ({/serving/other/gain:signed_percent})"
        f"{slower}, as simulated by: {{/serving/other/command:command}}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the card, the curves of the latencies, and a bar of the memory of each pool."""
    append_serving_card(parent, report_json)
    if report_json["serving"]["chart"]:
        append_line_chart(
            parent,
            report_json,
            "/serving/chart",
            description="Latency that a share of the requests does not exceed",
        )
    rows = [
        BarRow(
            label=f"Memory of a device, {{/serving/pools/{number}/role}}: weights"
            f" {{/serving/pools/{number}/weights:bytes}}, activations"
            f" {{/serving/pools/{number}/activations:bytes}}, other memory"
            f" {{/serving/pools/{number}/others:bytes}}, cache"
            f" {{/serving/pools/{number}/cache:bytes}}, of which"
            f" {{/serving/pools/{number}/cache_used:percent}} is used at most",
            lengths=pool["shares"],
            description="Memory of a device by use; the table has the bytes",
        )
        for number, pool in enumerate(report_json["serving"]["pools"])
    ]
    append_bar_rows(parent, report_json, rows)
    append_legend_words(parent, tuple(enumerate(_MEMORY_PARTS)))


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the tables of latencies, of the curves, of the iterations' parts and of the memory."""
    append_table(
        parent, report_json, "/serving/latencies", LATENCY_COLUMNS, caption="Latencies of requests"
    )
    if report_json["serving"]["chart"]:
        append_line_table(
            parent,
            report_json,
            "/serving/chart",
            caption="Latency that a share of the requests does not exceed",
        )
    append_table(
        parent, report_json, "/serving/parts", _PART_COLUMNS, caption="Time of all iterations"
    )
    append_table(
        parent, report_json, "/serving/pools", _POOL_COLUMNS, caption="Memory of a device by use"
    )
