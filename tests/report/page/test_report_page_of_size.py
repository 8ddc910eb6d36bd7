"""Pages of small and large plans: their size, their numbers, and a table beside every chart."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from shardwright.report.page.markup.value_at_json_pointer import value_at
from tests.report.page.page_numbers import require_numbers_of_document
from tests.report.page.report_of_size import SIZES, report_of
from tests.tiers import cases

CHART_ELEMENTS = ("svg", "canvas")


class Charts(HTMLParser):
    """Parser that collects the charts and the tables of each section.

    A bar in a card's list of quantities (`dl`) stands below the number that it shows.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: dict[str, list[str]] = {}
        """By section: pointers of its figures' data, "" for a chart without data of its own."""
        self.rows: dict[str, list[str]] = {}
        """By section: pointers of the lists that its tables show."""
        self.leaves: dict[str, int] = {}
        """By section: number of values outside of tables."""
        self._section = ""
        self._source: str | None = None
        self._pictures = 0
        self._cards = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "section":
            self._section = given["id"]
        if tag == "figure":
            self._source = given.get("data-source", "")
            assert ("data-chart" in given) == ("data-source" in given)
        self._cards += tag == "dl"
        in_card = self._cards and tag in CHART_ELEMENTS
        if not in_card and (tag in CHART_ELEMENTS or (tag == "figure" and self._source)):
            self.sections.setdefault(self._section, []).append(self._source or "")
        if tag == "svg":
            described = self._pictures or given.get("aria-label")
            assert described, f"a picture of {self._section} has no description"
            self._pictures += 1
        if "data-leaf" in given:
            self.leaves[self._section] = self.leaves.get(self._section, 0) + 1
        if rows := given.get("data-rows") or given.get("data-values"):
            self.rows.setdefault(self._section, []).append(rows)

    def handle_endtag(self, tag: str) -> None:
        if tag == "figure":
            self._source = None
        if tag == "svg":
            self._pictures -= 1
        self._cards -= tag == "dl"


@pytest.fixture(params=cases(list(SIZES), 1))
def size(request: pytest.FixtureRequest) -> str:
    return request.param


def test_size_of_the_page(size: str) -> None:
    _, html = report_of(size)
    assert len(html.encode()) < SIZES[size].page_bytes


def test_numbers_are_values_of_the_json(size: str) -> None:
    document, html = report_of(size)
    page = require_numbers_of_document(html, document)
    assert len(page.leaves) > 20


def test_every_chart_has_a_table_of_the_same_data(size: str) -> None:
    """A figure that scripts redraw names its data, and a table of its section lists them; a picture
    without scripts stands in a section with a table, or with the values as words."""
    document, html = report_of(size)
    charts = Charts(html)
    assert charts.sections
    for section, sources in charts.sections.items():
        rows = charts.rows.get(section, [])
        for source in sources:
            twins = [row for row in rows if row == source or row.startswith(f"{source}/")]
            if not source and charts.leaves.get(section):
                continue  # the values stand beside the picture
            assert twins, f"a chart of {section} shows {source or 'numbers'} that no table has"
            assert any(value_at(document, twin) for twin in twins), f"tables of {section} are empty"


@pytest.mark.proof
def test_elements_of_the_page_do_not_grow_with_the_devices() -> None:
    """What a browser lays out for its first picture: 16 times the devices are no more elements than
    the larger model's stages and tables add."""
    small, whole = (report_of(size)[1].count("</") for size in ("thousand", "whole"))
    assert whole < 3 * small
