"""Comparison of each number on a report's page with the JSON value that it names."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.value_at_json_pointer import value_at
from shardwright.report.page.markup.value_tables import cell_value

_NO_TEXT = ("style", "script", "title")
_VOID = ("meta", "link", "br", "hr", "img", "input")


@dataclass
class PageNumbers(HTMLParser):
    """Parser that collects shown values with their pointers, and the words outside of them."""

    leaves: list[tuple[str, str, str]] = field(default_factory=list)
    """(pointer, format, text) of each value outside tables."""
    cells: list[tuple[str, int, str, str, str]] = field(default_factory=list)
    """(pointer of the list, row, field, format, text) of each cell of a table.

    Where each column is a list of its own, the first is empty and the field is the list's pointer.
    """
    words: list[str] = field(default_factory=list)
    document_text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str]]] = []
        self._rows = ""
        self._columns: list[tuple[str, str]] = []
        self._row = -1
        self._column = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table":
            self._rows, self._columns, self._row = given.get("data-rows", ""), [], -2
        if tag == "th" and "data-form" in given:
            name = given.get("data-field") or given["data-values"]
            self._columns.append((name, given["data-form"]))
        if tag == "tr":
            self._row, self._column = self._row + 1, -1
        if tag == "td":
            self._column += 1
        if tag not in _VOID:
            self._open.append((tag, given | {"text": ""}))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Ignore elements without content."""

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        tag, given = next(
            one for one in reversed(self._open) if one[0] != "tspan" or "data-leaf" in one[1]
        )
        given["text"] += data  # a line of wrapped text belongs to its text
        if tag == "script" and given.get("id") == "document":
            self.document_text += data
        if tag not in _NO_TEXT and tag != "td" and "data-leaf" not in given:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        name, given = self._open.pop()
        assert name == tag, f"<{name}> is closed by </{tag}>"
        if tag == "td":
            field_name, form = self._columns[self._column]
            self.cells.append((self._rows, self._row, field_name, form, given["text"]))
        elif "data-leaf" in given:
            self.leaves.append((given["data-leaf"], given["data-form"], given["text"]))


def read_page(html: str) -> PageNumbers:
    """Parse a page."""
    page = PageNumbers()
    page.feed(html)
    page.close()
    return page


def embedded_document(page: PageNumbers) -> Any:
    """The JSON document that the page holds, compressed."""
    data = zlib.decompress(base64.b64decode(page.document_text), wbits=-zlib.MAX_WBITS)
    return json.loads(data)


def require_numbers_of_document(html: str, document: Any) -> PageNumbers:
    """Assert that all numbers of a page are values of the JSON document that the page holds."""
    page = read_page(html)
    assert embedded_document(page) == document
    require_page_numbers(page, document)
    return page


def require_page_numbers(page: PageNumbers, document: Any) -> None:
    """Assert that all numbers of a page are values of a JSON document, in the stated format.

    Words outside of values have no digit, and each value's text is its format's.
    """
    with_digits = [words for words in page.words if any(letter.isdigit() for letter in words)]
    assert not with_digits
    for pointer, form, text in page.leaves:
        assert text == formatted(value_at(document, pointer), form), pointer
    for rows, row, name, form, text in page.cells:
        value = (
            cell_value(value_at(document, rows)[row], name)
            if rows
            else value_at(document, name)[row]
        )
        assert text == formatted(value, form), (rows, row, name)
