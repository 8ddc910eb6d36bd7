"""HTML tables of the JSON's lists; each cell's value can be found from the table's attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.markup.json_pointer import value_at
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.sentences import require_no_digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table of values.

    Args:
        field: name of the value in each object, or relative pointer such as ``if_free/step_s``.
        heading: words above the column.
        form: format of the values, a name of `markup.number_formats.FORMATS`.
    """

    field: str
    heading: str
    form: str = "text"


def append_table(
    parent: Element, document: Any, pointer: str, columns: Sequence[Column], *, caption: str
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
        SubElement(head, "th", attributes).text = require_no_digits(column.heading)
    body = SubElement(table, "tbody")
    for row in value_at(document, pointer):
        line = SubElement(body, "tr")
        for column in columns:
            number = column.form != "text"
            cell = SubElement(line, "td", {"class": "number"} if number else {})
            cell.text = formatted(cell_value(row, column.field), column.form)
    return table


def cell_value(row: Any, field: str) -> Any:
    """Value of a field, or of a relative pointer, of an object; None where a part is missing."""
    for name in field.split("/"):
        row = row.get(name) if isinstance(row, dict) else None
    return row
