"""View of a serving result as a card alone, for a notebook."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.serving_card import append_serving_card
from shardwright.report.page.markup.value_tables import append_table
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.serving_latencies_view import LATENCY_COLUMNS, serving_reading


def serving_card_view(report_json: Any) -> View:
    """The view of a serving result: its card, its reading, and its latencies as a table."""
    return View(
        name="serving",
        question="What do users see?",
        reading=serving_reading(report_json["serving"]),
        chart=append_serving_card,
        tables=_append_table,
    )


def _append_table(parent: Element, report_json: Any) -> None:
    """Append the table of the latencies."""
    append_table(
        parent, report_json, "/serving/latencies", LATENCY_COLUMNS, caption="Latencies of requests"
    )
