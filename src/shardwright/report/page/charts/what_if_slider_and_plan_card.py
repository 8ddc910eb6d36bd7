"""A slider over the positions of an axis, with a card of the plan at the chosen position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.markup.quantity_card import append_card, append_figure
from shardwright.report.page.markup.sentences_with_json_values import append_words, value_element
from shardwright.report.page.markup.value_at_json_pointer import value_at


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigure:
    """One quantity of the card.

    Args:
        name: words above the quantity.
        template: sentence template of the quantity, whose pointers begin at the position.
        explanation: template of the line below it.
    """

    name: str
    template: str
    explanation: str = ""


def append_position_slider(
    parent: Element, report_json: Any, pointer: str, figures: Sequence[CardFigure]
) -> None:
    """Append a slider over the axis at a pointer, hidden until ``position_slider.js`` shows it.

    The card holds the values of the request's own position; the script replaces them by those of
    the chosen one. The slider moves the pointer of the line chart that follows the figure. The
    element ``what-if-KEY`` is its label.

    Args:
        pointer: of a `view_data_types.what_if_axes.AxisOfPositions`.
    """
    axis = value_at(report_json, pointer)
    position = f"{pointer}/positions/{axis['base']}"
    attributes = {"class": "slider", "data-chart": "slider", "data-source": pointer, "hidden": ""}
    figure = SubElement(parent, "figure", attributes)
    name = f"what-if-{axis['key']}"
    chosen = SubElement(figure, "output", {"for": f"{name}-slider"})
    value_element(chosen, report_json, f"{position}/amount", axis["form"])
    append_words(chosen, f" {axis['unit']}" if axis["unit"] else "")
    SubElement(
        figure,
        "input",
        {
            "type": "range",
            "id": f"{name}-slider",
            "aria-labelledby": name,
            "min": "0",
            "max": str(len(axis["positions"]) - 1),
            "step": "1",
            "value": str(axis["base"]),
        },
    )
    terms = append_card(figure, report_json, f"{{{position}/plan}}")
    for one in figures:
        append_figure(
            terms,
            report_json,
            one.name,
            _at(one.template, position),
            _at(one.explanation, position),
        )
    command = SubElement(SubElement(figure, "pre"), "code")
    value_element(command, report_json, f"{position}/command")


def _at(template: str, position: str) -> str:
    """Sentence template with the JSON pointer `position` put before each of its pointers."""
    return template.replace("{/", f"{{{position}/")
