"""The outputs of the notebooks are what their cells give today (tools/execute_notebooks.py)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.report.notebook_cards.notebook_html import notebook_html
from tests.report.page.page_numbers import read_page

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
MACHINE = re.compile(
    r"/(?:home|root|tmp|work|Users|opt|usr|var)/|[A-Z]:\\\\|127\.0\.0\.1|localhost"
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
QUESTION = re.compile(r"# .*\?\n")


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def text_of_card(html: str | None) -> Any:
    """Words and numbers of a card, whatever its style."""
    page = read_page(html or "")
    return page.words, page.leaves, page.cells


def shown(source: str, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Run a cell: what it prints, and the card of its last expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed = StringIO()
    value: Any = None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if printed.getvalue():
        yield "stream", printed.getvalue()
    if value is not None:
        yield "execute_result", text_of_card(notebook_html(value))


def stored(outputs: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [
        (
            output["output_type"],
            output["text"] if "text" in output else text_of_card(output["data"]["text/html"]),
        )
        for output in outputs
    ]


def test_there_is_a_notebook_for_training_and_one_for_serving() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        assert QUESTION.match(cells(path)[0]["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_the_cells(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    compared = 0
    for cell in cells(path):
        if cell["cell_type"] == "code":
            found = list(shown(cell["source"], names))
            assert found == stored(cell["outputs"])
            compared += len(found)
    assert compared >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_no_machine_and_its_links_are_there(path: Path) -> None:
    assert not MACHINE.search(path.read_text(encoding="utf-8"))
    links = {link for cell in cells(path) for link in LINK.findall("".join(cell["source"]))}
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
