"""A view of the page: question, chart, reading in a sentence, numbers as a table, next change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.markup.sentences_with_json_values import (
    append_sentence,
    require_no_digits,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of the report.

    Args:
        name: identifier of the section, and name of the view's data in the JSON.
        question: question that the view answers.
        reading: template of the sentence that says what the chart shows.
        next_change: template of the sentence that names the next change and its worth; empty where
            no change is known.
        chart: appends the chart to an element; None where the view is a table alone.
        tables: appends the tables with the chart's numbers to an element.
    """

    name: str
    question: str
    reading: str
    next_change: str = ""
    chart: Callable[[Element, Any], None] | None = None
    tables: Callable[[Element, Any], None] | None = None
    tables_open: bool = False


def append_view(parent: Element, report_json: Any, view: View) -> None:
    """Append a view to the page as a section: its question, chart, sentences and tables."""
    heading = f"{view.name}-question"
    section = SubElement(parent, "section", {"id": view.name, "aria-labelledby": heading})
    SubElement(section, "h2", {"id": heading}).text = require_no_digits(view.question)
    append_view_content(section, report_json, view)


def append_view_content(section: Element, report_json: Any, view: View) -> None:
    """Append chart, reading, next change and tables of a view, without its question."""
    if view.chart is not None:
        view.chart(section, report_json)
    append_sentence(SubElement(section, "p", {"class": "reading"}), report_json, view.reading)
    if view.next_change:
        paragraph = SubElement(section, "p", {"class": "next"})
        SubElement(paragraph, "strong").text = "Next change: "
        append_sentence(paragraph, report_json, view.next_change)
    if view.tables is not None:
        details = SubElement(section, "details", {"open": ""} if view.tables_open else {})
        SubElement(details, "summary").text = "The numbers as a table"
        scroll = {"class": "scroll", "tabindex": "0"}  # a keyboard can scroll it
        view.tables(SubElement(details, "div", scroll), report_json)
