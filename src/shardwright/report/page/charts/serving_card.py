"""Card of a serving result: throughput, latencies and use of the KV cache."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.markup.quantity_card import append_card, append_figure


def append_serving_card(parent: Element, report_json: Any) -> None:
    """Append a deployment's card: tokens a second, median latencies, fullest KV cache, energy."""
    serving = report_json["serving"]
    figures = append_card(
        parent,
        report_json,
        "{/serving/model} on {/serving/cluster}",
        lines=("{/serving/engine}", "{/serving/deployment}"),
    )
    shares = []
    if serving["devices"] > 1:
        shares.append(
            "{/serving/tokens_per_s_per_device:number} on each of {/serving/devices:count} devices"
        )
    if serving["tokens_per_s_per_user"] is not None:
        shares.append("{/serving/tokens_per_s_per_user:number} for each user")
    append_figure(
        figures,
        report_json,
        "Tokens a second",
        "{/serving/tokens_per_s:short_count}",
        ", ".join(shares),
    )
    for number, latency in enumerate(serving["latencies"]):
        if latency["p50_s"] is not None:
            at = f"/serving/latencies/{number}"
            append_figure(
                figures,
                report_json,
                latency["name"].capitalize(),
                f"{{{at}/p50_s:seconds}}",
                f"in the median; one request in a hundred takes longer than {{{at}/p99_s:seconds}}",
            )
    fullest = max(range(len(serving["pools"])), key=lambda k: serving["pools"][k]["cache_used"])
    append_figure(
        figures,
        report_json,
        "KV cache",
        f"{{/serving/pools/{fullest}/cache_used:percent}}",
        "in use at most"
        + (f", by {{/serving/pools/{fullest}/role}}" if len(serving["pools"]) > 1 else ""),
    )
    if serving["joules_per_token"] is not None:
        append_figure(
            figures,
            report_json,
            "Energy",
            "{/serving/joules_per_token:number} J",
            "a token at most, at the devices' power limits",
        )
