"""How many names strangers understood: the last draws of decision 31 against its aim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "0031-names-that-are-read-alone.md"
DRAW = re.compile(r"^\| [^|]*\d[^|]* \| (\d+) \| (\d+) \|$", re.MULTILINE)
"""Row of a draw: its seeds, functions right and module paths right."""
FUNCTIONS = 56
PATHS = 36


def last_draws() -> list[tuple[int, int]]:
    """(functions, paths) that were right in the last two draws of the page."""
    return [(int(row[1]), int(row[2])) for row in DRAW.finditer(PAGE.read_text("utf-8"))][-2:]


@pytest.mark.xfail(strict=True, reason="52 and 53 of 60; before the work 37 to 41 by such judges")
def test_functions_are_understood_from_their_first_lines() -> None:
    assert all(functions >= FUNCTIONS for functions, _ in last_draws())


@pytest.mark.xfail(strict=True, reason="34 and 34 of 40; before the work 24 to 26 by such judges")
def test_modules_are_understood_from_their_paths() -> None:
    assert all(paths >= PATHS for _, paths in last_draws())


def test_names_are_understood_better_than_before_the_work() -> None:
    rows = [(int(row[1]), int(row[2])) for row in DRAW.finditer(PAGE.read_text("utf-8"))]
    assert len(rows) >= 12
    assert all(functions > 41 and paths > 26 for functions, paths in last_draws())
