"""Pictures of a guide can be read in every width and colour scheme, on its page and as files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from shardwright.report.guide.guide_html_page import guide_html
from tests.browser.test_report_in_browser import BAD_LABELS, SCHEMES, TOO_WIDE, WIDTHS
from tests.report.pictures.guide_of_six_rules import guide_json

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_labels_are_legible(page_of: Callable[..., Page], width: int, scheme: str) -> None:
    page = page_of(guide_html(guide_json()), width=width, scheme=scheme)
    assert page.locator("svg.guide-picture").count() == 2
    assert page.evaluate(BAD_LABELS) == []
    assert page.evaluate(TOO_WIDE) == []
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()
