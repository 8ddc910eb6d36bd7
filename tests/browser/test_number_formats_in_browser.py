"""Numbers that scripts show have the texts of the page's own formats."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from shardwright.report.page.markup.number_formats import FORMATS, formatted

if TYPE_CHECKING:
    from playwright.sync_api import Page

VALUES = 300
"""Values of each format."""


def sizes(generator: random.Random) -> list[float]:
    """Numbers of all sizes and signs, those at which a unit or notation changes, and ties."""
    steps = [10.0**power for power in range(-12, 16)] + [1024.0**power for power in range(6)]
    near = [step * factor for step in steps for factor in (0.99996, 0.99994, 1.0, 1.00001)]
    drawn = [10 ** generator.uniform(-13, 16) for _ in range(VALUES)]
    negative = [-value for value in drawn[: VALUES // 3] if value >= 1]
    ties = [whole + half for whole in range(1000, 1010) for half in (0.0625, 0.125, 0.5)]
    small_ties = [value / 1024 for value in ties] + [8.5625, 8.5635, 0.0025, 0.00125, 0.0625]
    return [0.0, 0.5, 1.5, 2.5, *ties, *small_ties, *near, *drawn, *negative]


def test_scripts_format_numbers_as_the_page_does(page_of: Callable[..., Page]) -> None:
    script = files("shardwright.report.page.browser").joinpath("number_formats.js").read_text()
    page = page_of("<!doctype html><html lang='en'><title>t</title><main></main></html>")
    values = sizes(random.Random(1))
    for form in FORMATS:
        largest = 1e6 if "percent" in form or form == "days" else 1e15
        given = (
            ["words"]
            if form in ("text", "command")
            else [value for value in values if abs(value) < largest]
        )
        shown = page.evaluate(
            f"{script}; {json.dumps(given)}.map((v) => formatNumber(v, '{form}'))"
        )
        assert shown == [formatted(value, form) for value in given], form
        assert page.evaluate(f"{script}; formatNumber(null, '{form}')") == formatted(None, form)
