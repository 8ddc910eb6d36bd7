"""HTML tables of the JSON's lists; each cell's value can be found from the table's attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.sentences_with_json_values import (
    append_words,
    require_no_digits,
    value_element,
)
from shardwright.report.page.markup.series_swatch import append_swatch
from shardwright.report.page.markup.value_at_json_pointer import value_at

_WORDS: Final = ("text", "command")
"""Formats of words, which are aligned to the left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table of values.

    Args:
        field: name of the value in each object, or relative pointer such as ``if_free/step_s``.
        heading: words above the column.
        form: format of the values, a name of `markup.number_formats.FORMATS`.
        swatch: True = each cell begins with a square in the chart's colour of its row.
        colour_field: field with the number of the row's colour, for a square in front of the cell;
            empty = none.
        colour: number of the column's series in the chart; -1 = none.
    """

    field: str
    heading: str
    form: str = "text"
    swatch: bool = False
    colour_field: str = ""
    colour: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayColumn:
    """A column whose values are a list of the JSON.

    Args:
        values: JSON pointer of the list.
        heading: JSON pointer of the words above the column.
        form: format of the values.
        colour: number of the series in the chart; -1 = none.
    """

    values: str
    heading: str
    form: str
    colour: int = -1


def append_table(
    parent: Element, report_json: Any, pointer: str, columns: Sequence[Column], *, caption: str
) -> Element:
    """Append a table of the list of objects at a pointer, a row each; returns the table.

    The table names the list (``data-rows``), each heading the field and format of its column, so
    the value behind the cell in row `r` is ``{data-rows}/{r}/{data-field}``. A field that an object
    does not have is null.
    """
    table = SubElement(parent, "table", {"data-rows": pointer})
    SubElement(table, "caption").text = require_no_digits(caption)
    head = SubElement(SubElement(table, "thead"), "tr")
    for column in columns:
        attributes = {"scope": "col", "data-field": column.field, "data-form": column.form}
        heading = SubElement(head, "th", attributes)
        if column.colour >= 0:
            append_swatch(heading, number=column.colour)
        append_words(heading, column.heading)
    body = SubElement(table, "tbody")
    for number, row in enumerate(value_at(report_json, pointer)):
        line = SubElement(body, "tr")
        for column in columns:
            cell = _append_cell(line, cell_value(row, column.field), column.form)
            if column.swatch or column.colour_field:
                colour = cell_value(row, column.colour_field) if column.colour_field else number
                cell.text, text = None, cell.text
                append_swatch(cell, number=colour)
                cell[-1].tail = text
    return table


def append_array_table(
    parent: Element, report_json: Any, columns: Sequence[ArrayColumn], *, caption: str
) -> Element:
    """Append a table whose columns are lists of the JSON with equal lengths; returns the table.

    Each heading names the list (``data-values``), so the value behind the cell in row `r` is
    ``{data-values}/{r}``.
    """
    table = SubElement(parent, "table")
    SubElement(table, "caption").text = require_no_digits(caption)
    head = SubElement(SubElement(table, "thead"), "tr")
    for column in columns:
        attributes = {"scope": "col", "data-values": column.values, "data-form": column.form}
        heading = SubElement(head, "th", attributes)
        if column.colour >= 0:
            append_swatch(heading, number=column.colour)
        value_element(heading, report_json, column.heading)
    body = SubElement(table, "tbody")
    lists = [value_at(report_json, column.values) for column in columns]
    for values in zip(*lists, strict=True):
        line = SubElement(body, "tr")
        for column, value in zip(columns, values, strict=True):
            _append_cell(line, value, column.form)
    return table


def _append_cell(line: Element, value: Any, form: str) -> Element:
    """Append a cell with a value in a format; numbers are aligned to the right."""
    cell = SubElement(line, "td", {} if form in _WORDS else {"class": "number"})
    cell.text = formatted(value, form)
    return cell


def cell_value(row_json: Any, field: str) -> Any:
    """Value of a field, or relative pointer, of a JSON object; None where a part is missing."""
    for name in field.split("/"):
        if isinstance(row_json, list):
            row_json = row_json[int(name)]
        else:
            row_json = row_json.get(name) if isinstance(row_json, dict) else None
    return row_json
