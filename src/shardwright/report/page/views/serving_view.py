"""View of a serving simulation: throughput, latencies and use of the KV cache."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.markup.figure_card import append_card, append_figure
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_COLUMNS = (
    Column(field="name", heading="latency"),
    Column(field="mean_s", heading="mean", form="seconds"),
    Column(field="p50_s", heading="median", form="seconds"),
    Column(field="p90_s", heading="one in ten takes longer", form="seconds"),
    Column(field="p99_s", heading="one in a hundred takes longer", form="seconds"),
)


def serving_view(document: Any) -> View:
    """The view of a deployment under traffic."""
    serving = document["serving"]
    queue = (
        " {/serving/queue:number} requests wait for admission in the mean."
        if serving["queue"] >= 0.5
        else " No request waits for admission."
    )
    targets = (
        ""
        if serving["kept_share"] is None
        else " {/serving/kept_share:percent} of the requests meet the latency targets"
        " ({/serving/targets}); {/serving/target_share:percent} must."
    )
    return View(
        name="serving",
        question="What do users see?",
        reading=f"{{/serving/concurrency:number}} requests are served at once in the mean."
        f"{queue}{targets}",
        chart=_append_card,
        tables=_append_table,
    )


def _append_card(parent: Element, document: Any) -> None:
    """Append the card of the deployment."""
    serving = document["serving"]
    figures = append_card(
        parent,
        document,
        "{/serving/model} on {/serving/cluster}",
        lines=(
            "{/serving/parameters:parameters} parameters, {/serving/engine}",
            "{/serving/deployment}",
        ),
    )
    shares = [
        "{/serving/tokens_per_s_per_device:number} on each of {/serving/devices:count} devices"
    ]
    if serving["devices"] == 1:
        shares = []
    if serving["tokens_per_s_per_user"] is not None:
        shares.append("{/serving/tokens_per_s_per_user:number} for each user")
    append_figure(
        figures,
        document,
        "Tokens a second",
        "{/serving/tokens_per_s:short_count}",
        ", ".join(shares),
    )
    for number, latency in enumerate(serving["latencies"]):
        if latency["p50_s"] is not None:
            at = f"/serving/latencies/{number}"
            append_figure(
                figures,
                document,
                latency["name"].capitalize(),
                f"{{{at}/p50_s:seconds}}",
                f"in the median; one request in a hundred takes longer than {{{at}/p99_s:seconds}}",
            )
    append_figure(
        figures,
        document,
        "KV cache",
        "{/serving/cache_share:percent}",
        "in use at most, on the fullest worker",
    )
    if serving["joules_per_token"] is not None:
        append_figure(
            figures,
            document,
            "Energy",
            "{/serving/joules_per_token:number} J",
            "a token at most, at the devices' power limits",
        )


def _append_table(parent: Element, document: Any) -> None:
    """Append the table of the latencies."""
    append_table(parent, document, "/serving/latencies", _COLUMNS, caption="Latencies of requests")
