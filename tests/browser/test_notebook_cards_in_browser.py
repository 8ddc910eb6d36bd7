"""Cards of a notebook on a light and on a dark page: readable, and no wider than the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.test_notebook_display import notebook_html, result_of

THEMES = {
    "light": "background: #fff; color: rgba(0, 0, 0, 0.87)",
    "dark": "background: #111; color: rgba(255, 255, 255, 0.87)",
}
NAMES = ("answer", "plan", "trace", "serving")


@pytest.fixture(scope="module")
def cards() -> str:
    cards = [notebook_html(result_of(name)) or "" for name in NAMES]
    return "".join(cards).replace("<details>", '<details open="">')


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [360, 1600])
def test_cards_suit_the_theme(
    page_of: Callable[..., Any], cards: str, width: int, theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>notebook</title></head>'
        f'<body style="{THEMES[theme]}"><main><h1>Notebook</h1>{cards}</main></body></html>'
    )
    page = page_of(html, width=width)
    assert page.locator(".shardwright").count() == len(NAMES)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()
