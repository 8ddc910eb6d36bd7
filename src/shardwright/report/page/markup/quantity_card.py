"""Card of an answer's quantities: a heading, and values in large type with explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.sentences_with_json_values import (
    append_sentence,
    require_no_digits,
)


def append_card(
    parent: Element, report_json: Any, heading: str, *, lines: Sequence[str] = (), foot: str = ""
) -> Element:
    """Append a card of sentence templates filled from the JSON; returns its list of figures.

    Args:
        heading: template of the first line.
        lines: templates of the lines below it, in smaller type.
        foot: template of the line below the figures; empty = none.
    """
    card = SubElement(parent, "div", {"class": "card"})
    append_sentence(SubElement(card, "p", {"class": "strategy"}), report_json, heading)
    for line in lines:
        append_sentence(SubElement(card, "p", {"class": "card-line"}), report_json, line)
    figures = SubElement(card, "dl", {"class": "figures"})
    if foot:
        append_sentence(SubElement(card, "p", {"class": "card-line"}), report_json, foot)
    return figures


def append_figure(
    parent: Element, report_json: Any, name: str, figure: str, explanation: str = ""
) -> Element:
    """Append a quantity to a card: its name, and templates of its value and explanation.

    Args:
        figure, explanation: templates; see `markup.sentences_with_json_values`.
    """
    group = SubElement(parent, "div")
    SubElement(group, "dt").text = require_no_digits(name)
    append_sentence(SubElement(group, "dd", {"class": "figure"}), report_json, figure)
    if explanation:
        append_sentence(SubElement(group, "dd"), report_json, explanation)
    return group


def append_gauge(figure: Element, share: float) -> None:
    """Append a thin bar below a quantity, filled up to `share`, a fraction that its text has."""
    bar = SubElement(SubElement(figure, "dd"), "div", {"class": "gauge", "aria-hidden": "true"})
    SubElement(bar, "div", {"style": f"width: {100 * share:.1f}%"})
