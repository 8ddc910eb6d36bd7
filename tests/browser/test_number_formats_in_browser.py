"""Numbers that scripts show have the texts of the page's own formats."""

from __future__ import annotations

import json
import math
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
    """Numbers of all sizes and signs, and those at which a unit or notation changes."""
    steps = [10.0**power for power in range(-12, 16)] + [1024.0**power for power in range(6)]
    near = [step * factor for step in steps for factor in (0.99996, 0.99994, 1.0, 1.00001)]
    drawn = [10 ** generator.uniform(-13, 16) for _ in range(VALUES)]
    negative = [-value for value in drawn[: VALUES // 3] if value >= 1]
    return [0.0, 0.5, 1.5, 2.5, *near, *drawn, *negative]


def is_tie(value: float, form: str) -> bool:
    """True if a value lies between two texts, where the languages' roundings may differ."""
    scale = 1000 * 100 if "percent" in form else 100 if form == "days" else 1.0
    digits = value * scale
    return math.isclose(abs(digits - math.floor(digits)), 0.5, abs_tol=1e-6)


def test_scripts_format_numbers_as_the_page_does(page_of: Callable[..., Page]) -> None:
    script = files("shardwright.report.page.browser").joinpath("number_formats.js").read_text()
    page = page_of("<!doctype html><html lang='en'><title>t</title><main></main></html>")
    values = sizes(random.Random(1))
    for form in FORMATS:
        largest = 1e6 if "percent" in form or form == "days" else 1e15
        given = (
            ["words"]
            if form in ("text", "command")
            else [value for value in values if abs(value) < largest and not is_tie(value, form)]
        )
        shown = page.evaluate(
            f"{script}; {json.dumps(given)}.map((v) => formatNumber(v, '{form}'))"
        )
        assert shown == [formatted(value, form) for value in given], form
        assert page.evaluate(f"{script}; formatNumber(null, '{form}')") == formatted(None, form)
