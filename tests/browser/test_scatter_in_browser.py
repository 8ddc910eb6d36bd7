"""Scatter charts in a browser: the pointer and the keyboard reach each point and its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.files.canonical_json import to_text
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.report_page import report_html
from tests.browser.test_report_in_browser import BAD_LABELS, OPEN_ALL, TOO_WIDE, settled
from tests.files.other_answers import OTHER_KINDS
from tests.report.page.report_of_size import report_of
from tests.report.page.test_report_page_of_any_plan import document_of_kind

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHARTS = {"members": "/members", "accuracy": "/accuracy"}


def _lines(chart: Any) -> list[str]:
    """The list of all points, in the formats of the page: by group, then by both values."""
    points = chart["points"]
    lines = []
    for number in range(len(chart["groups"])):
        places = [place for place, of in enumerate(points["group"]) if of == number]
        places.sort(key=lambda place: (points["x"][place], points["y"][place]))
        lines += [
            "  ".join(
                [
                    formatted(points["x"][place], chart["x"]["form"]).ljust(9),
                    formatted(points["y"][place], chart["y"]["form"]).ljust(10),
                    points["label"][place],
                ]
            )
            for place in places
        ]
    return lines


def require_readable(page_of: Callable[..., Page], html: str, *, width: int) -> None:
    """Assert that nothing is cut off and axe finds nothing, light, dark and without script."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for javascript, scheme in ((True, "light"), (True, "dark"), (False, "dark")):
        page = settled(page_of(html, width=width, scheme=scheme, javascript=javascript))
        page.evaluate(OPEN_ALL)
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(BAD_LABELS) == []
        if javascript:
            found = axe.run(page)
            assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", CHARTS)
def test_list_of_all_points_has_the_numbers_of_the_json(
    page_of: Callable[..., Page], name: str
) -> None:
    document, html = report_of("small")
    page = settled(page_of(html))
    page.evaluate(OPEN_ALL)
    page.wait_for_timeout(100)
    lines = page.evaluate(
        "(name) => [...document.querySelectorAll(`#${name} pre.lines`)]"
        ".flatMap((list) => list.textContent.split('\\n'))",
        name,
    )
    chart = document[name]["chart"]
    assert len(lines) == len(chart["points"]["x"]) > 500
    assert lines == _lines(chart)


@pytest.mark.parametrize("name", CHARTS)
def test_keys_go_from_point_to_point(page_of: Callable[..., Page], name: str) -> None:
    document, html = report_of("small")
    page = settled(page_of(html))
    chart = document[name]["chart"]
    points = chart["points"]
    order = sorted(
        range(len(points["x"])), key=lambda place: (points["x"][place], points["y"][place])
    )
    page.focus(f"#{name} figure[data-chart=scatter] canvas")
    for key, place in (("Home", 0), ("ArrowRight", 1), ("PageUp", 51), ("End", len(order) - 1)):
        page.keyboard.press(key)
        words = page.text_content(f"#{name} .point-words") or ""
        assert points["label"][order[place]] in words
        assert formatted(points["x"][order[place]], chart["x"]["form"]) in words
        assert formatted(points["y"][order[place]], chart["y"]["form"]) in words


def test_pointer_shows_the_nearest_point(page_of: Callable[..., Page]) -> None:
    document, html = report_of("small")
    page = settled(page_of(html, width=900))
    canvas = page.query_selector("#members figure[data-chart=scatter] canvas")
    assert canvas is not None
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    seen = set()
    for across in range(10, 90, 4):
        page.mouse.move(box["x"] + box["width"] * across / 100, box["y"] + box["height"] * 0.45)
        seen.add(page.text_content("#members .point-words"))
    shared = document["members"]["shared_words"]
    assert len(seen) > 3
    assert any(shared in (words or "") for words in seen)
    page.mouse.move(5, 5)
    assert "Point at a mark" in (page.text_content("#members .point-words") or "")


def test_notation_of_the_point_is_below_the_chart(page_of: Callable[..., Page]) -> None:
    document = document_of_kind("mixed")
    page = settled(page_of(report_html(document)))
    plans = document["members"]["held"]["plans"]
    box = "#members .point-notation"
    assert not page.is_visible(box)
    page.focus("#members figure[data-chart=scatter] canvas")
    page.keyboard.press("Home")
    for plan in plans:
        assert plan["strategy"] in (page.text_content("#members .point-words") or "")
        assert page.text_content(box) == plan["notation"]
        page.keyboard.press("ArrowRight")
    assert page.is_visible(box)


@pytest.mark.parametrize("width", [360, 1600])
def test_plans_of_a_mixed_file_can_be_read(page_of: Callable[..., Page], width: int) -> None:
    require_readable(page_of, report_html(document_of_kind("mixed")), width=width)


@pytest.mark.parametrize("kind", ["strategies", "advice", "serving"])
@pytest.mark.parametrize("width", [360, 1600])
def test_other_kinds_can_be_read(
    page_of: Callable[..., Page], kind: str, width: int, tmp_path: Any
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(to_text(OTHER_KINDS[kind]()))
    html = report_html(json.loads(to_text(report_document(make_report(file)))))
    require_readable(page_of, html, width=width)
