"""Card of an answer's quantities: a heading, and values in large type with explanations."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.sentences import append_sentence, require_no_digits


def append_card(parent: Element, document: Any, heading: str) -> Element:
    """Append a card with a heading from a template; returns the list for `append_figure`."""
    card = SubElement(parent, "div", {"class": "card"})
    append_sentence(SubElement(card, "p", {"class": "strategy"}), document, heading)
    return SubElement(card, "dl", {"class": "figures"})


def append_figure(
    parent: Element, document: Any, name: str, figure: str, explanation: str = ""
) -> None:
    """Append one quantity of a card: its name, its value and a line of explanation.

    Args:
        figure, explanation: templates; see `markup.sentences`.
    """
    group = SubElement(parent, "div")
    SubElement(group, "dt").text = require_no_digits(name)
    append_sentence(SubElement(group, "dd", {"class": "figure"}), document, figure)
    if explanation:
        append_sentence(SubElement(group, "dd"), document, explanation)
