"""docs/guide is what tools/guide_pages.py writes: pages made again, and cells of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiers import chosen
from tools import guide_pages

FOLDER = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("name", chosen(["dense-8b", "multimodal"], ["multimodal"]))
def test_a_page_made_again_is_the_page(name: str) -> None:
    page = guide_pages.case_page(name, *guide_pages.case_guides(name))
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == page, "run `make guide`"


def test_every_case_has_a_page_and_a_column() -> None:
    tables = (FOLDER / "decision-tables.md").read_text(encoding="utf-8")
    for name, case in guide_pages.CASES.items():
        assert (FOLDER / f"{name}.md").is_file(), "run `make guide`"
        assert f"[{case.title}]({name}.md)" in tables


def test_losses_of_the_tables_are_those_of_the_pages() -> None:
    tables = (FOLDER / "decision-tables.md").read_text(encoding="utf-8")
    training = tables.partition("## Training")[2].partition("## Serving")[0]
    _, _, *rows = [line for line in training.splitlines() if line.startswith("|")]
    for row in rows:
        question, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for name, cell in zip(guide_pages.CASES, cells, strict=True):
            if cell.startswith("loses"):
                page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
                line = re.search(rf"^\| {re.escape(question)} \|.*$", page, flags=re.MULTILINE)
                assert line is not None
                assert f"Here it {cell}" in line[0]
