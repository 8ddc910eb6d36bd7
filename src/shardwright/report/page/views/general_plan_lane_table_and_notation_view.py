"""View of a general plan: its sizes, its lanes, and its text."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.quantity_card import append_card, append_figure
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, value_element
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_COLUMNS = (
    Column(field="name", heading="lane"),
    Column(field="role", heading="work"),
    Column(field="samples", heading="sequences", form="count"),
    Column(field="microbatches", heading="microbatches", form="count"),
    Column(field="stages", heading="stages", form="count"),
    Column(field="order", heading="pipeline order"),
)


def plan_view(report_json: Any) -> View:
    """The view of a general plan: its devices and sequences, lanes, and text in notation."""
    several = len(report_json["plan"]["lanes"]) > 1
    lanes = "The lanes share" if several else "One lane runs"
    return View(
        name="plan",
        question="What is the plan?",
        reading=f"{lanes} {{/plan/samples:count}} sequences of a step on"
        " {/plan/devices:count} devices.",
        chart=_append_card,
        tables=_append_tables,
    )


def _append_card(parent: Element, report_json: Any) -> None:
    """Append the card of a plan: numbers of devices, sequences, stages and ZeRO rules."""
    figures = append_card(parent, report_json, "A general plan")
    append_figure(figures, report_json, "Devices", "{/plan/devices:count}")
    append_figure(figures, report_json, "Sequences a step", "{/plan/samples:count}")
    append_figure(figures, report_json, "Stages", "{/plan/stages:count}", "of all lanes together")
    append_figure(figures, report_json, "ZeRO rules", "{/plan/zero_rules:count}")


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the table of the lanes, and the plan's text in the general notation."""
    append_table(parent, report_json, "/plan/lanes", _COLUMNS, caption="Lanes of the plan")
    plan = report_json["plan"]
    if plan["notation"] is not None:
        append_sentence(
            SubElement(parent, "p"),
            report_json,
            "The plan's text"
            if plan["shown_lines"] == plan["lines"]
            else "The first {/plan/shown_lines:count} of {/plan/lines:count} lines of its text",
        )
        value_element(SubElement(parent, "pre", {"tabindex": "0"}), report_json, "/plan/notation")
