"""The sliders of searched changes: each position shows the values of its own JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.api.report.report_content_of_answer_file import (
    add_what_if,
    make_report,
    report_document,
)
from shardwright.api.searches.grid_search import plan
from shardwright.files.plan_and_simulation_file_contents import file_text, stored_answer
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.value_at_json_pointer import value_at
from shardwright.report.page.report_page import VIEWS, report_html
from tests.browser.test_report_in_browser import BAD_LABELS, OPEN_ALL, TOO_WIDE, settled
from tests.report.page.test_what_if_view import SMALL

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHOWN = """(slider) => [...slider.closest('figure').querySelectorAll('[data-leaf]')]
  .map((value) => [value.dataset.leaf, value.dataset.form, value.textContent])"""
POINTED = "(slider) => slider.closest('figure').nextElementSibling.plot.legend.values[0]._"


@cache
def document_and_page() -> tuple[Any, str]:
    """JSON document and page of a report with this view alone."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "best.json"
        file.write_text(file_text(stored_answer(plan(SMALL, sensitive=False)), file))
        document = report_document(add_what_if(make_report(file), file))
    alone = {**document, **dict.fromkeys(VIEWS), "what_if": document["what_if"]}
    return alone, report_html(alone)


def test_the_keys_move_through_searched_plans(page_of: Callable[..., Page]) -> None:
    document, html = document_and_page()
    page = settled(page_of(html, width=360))
    for number, axis in enumerate(document["what_if"]["axes"]):
        slider = page.locator(f"#what-if-{axis['key']}-slider")
        slider.focus()
        slider.press("Home")
        for place, position in enumerate(axis["positions"]):
            shown = slider.evaluate(SHOWN)
            assert len(shown) > 8
            for pointer, form, text in shown:
                assert pointer.startswith(f"/what_if/axes/{number}/positions/{place}/")
                assert text == formatted(value_at(document, pointer), form)
            amount = formatted(position["amount"], axis["form"])
            assert str(slider.get_attribute("aria-valuetext")).startswith(amount)
            assert page.evaluate(POINTED, slider.element_handle()) == amount
            slider.press("ArrowRight")


def test_without_scripts_there_are_curves_and_tables(page_of: Callable[..., Page]) -> None:
    document, html = document_and_page()
    page = settled(page_of(html, javascript=False))
    axes = len(document["what_if"]["axes"])
    assert page.locator("#what_if input").evaluate_all("(all) => all.length") == axes
    assert not any(one.is_visible() for one in page.locator("#what_if input").all())
    assert page.locator("#what_if svg.plot").count() == axes
    page.evaluate(OPEN_ALL)
    assert page.locator("#what_if table tbody tr").count() > 9 * axes


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_labels_and_axe(
    page_of: Callable[..., Page], width: int, scheme: str, javascript: bool
) -> None:
    page = settled(
        page_of(document_and_page()[1], width=width, scheme=scheme, javascript=javascript)
    )
    # Labels of a plot stand beside its area, in the margin of the figure.
    faults = [fault for fault in page.evaluate(BAD_LABELS) if not fault.startswith("cut")]
    assert faults == []
    page.evaluate(OPEN_ALL)
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if javascript:
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()
