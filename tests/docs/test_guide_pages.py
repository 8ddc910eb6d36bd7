"""docs/guide is what tools/guide_pages.py writes: pages made again, and cells of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.tiers import chosen
from tools import guide_pages

FOLDER = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("name", chosen(["dense-8b", "multimodal"], ["multimodal"]))
def test_a_page_made_again_is_the_page(name: str) -> None:
    guides = guide_pages.case_guides(name)
    page = guide_pages.case_page(name, *guides)
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == page, "run `make guide`"
    for file, text in guide_pages.case_pictures(name, *guides).items():
        assert (FOLDER / "pictures" / file).read_text(encoding="utf-8") == text, "run `make guide`"


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


def pictures(ending: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Part of a page beside each picture, and the picture's (pointer, text) of each value."""
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        training, _, serving = text.partition("\n## Serving")
        for part in (training, serving):
            for link in re.findall(rf"!\[[^]]+\]\(([^)]+-{ending}\.svg)\)", part):
                svg = ET.fromstring((FOLDER / link).read_text(encoding="utf-8"))
                values = [one for one in svg.iter() if "data-leaf" in one.attrib]
                yield (
                    part,
                    [(one.attrib["data-leaf"], "".join(one.itertext())) for one in values],
                )


def test_pages_link_every_picture() -> None:
    linked = [
        link
        for page in FOLDER.glob("*.md")
        for link in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    files = [f"pictures/{path.name}" for path in (FOLDER / "pictures").iterdir()]
    assert len(linked) == 2 * sum(2 if case.served else 1 for case in guide_pages.CASES.values())
    assert sorted(linked) == sorted(files), "run `make guide`"


def test_losses_of_a_picture_are_those_of_the_table() -> None:
    compared = 0
    for page, values in pictures("rules"):
        for (_, question), (pointer, text) in zip(values[::2], values[1::2], strict=True):
            line = re.search(rf"^\| {re.escape(question)} \|.*$", page, flags=re.MULTILINE)
            assert line is not None
            words = {
                "holds": "It holds here",
                "does not fit": "no plan that follows it fits",
                "not possible": "It cannot be followed here",
            }
            gains = text.startswith("-")
            expected = words.get(
                text, f"Here it {'gains' if gains else 'loses'} {text.lstrip('-')}"
            )
            assert expected in line[0], pointer
            compared += 1
    assert compared > 100


def test_break_evens_of_a_picture_are_those_of_the_list() -> None:
    compared = 0
    for page, values in pictures("break-evens"):
        for pointer, change in values:
            place, _, field = pointer.rpartition("/")
            if field != "change":
                continue
            numbers = [text for one, text in values if one.startswith(f"{place}/sides/")]
            assert numbers
            lines = [line for line in page.splitlines() if line.startswith(f"- {change}")]
            assert any(all(number in line for number in numbers) for line in lines), change
            compared += 1
    assert compared > 100
