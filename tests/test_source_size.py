"""Size of the source, measured so that neither formatting nor data files hide code."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.sources import SOURCE

DATA = (".json", ".yaml", ".yml", ".toml", ".csv", ".txt", ".md")


@cache
def mass() -> int:
    """Syntax tree nodes without docstrings, + characters of string constants / 8, + bytes of text
    data files / 8."""
    nodes = letters = data = 0
    for path in SOURCE.rglob("*"):
        if path.suffix in DATA:
            data += path.stat().st_size
        if path.suffix != ".py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, documented) and ast.get_docstring(node):
                node.body[0].value = ast.Constant(0)  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            nodes += 1
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                letters += len(node.value)
    return nodes + letters // 8 + data // 8


def test_the_source_does_not_grow_unnoticed() -> None:
    assert 900_000 < mass() <= 1_300_000


@pytest.mark.xfail(
    strict=True,
    reason=(
        "1,285,000: the limit was set for a tree of 1,020,719, before option rules, readers and"
        " checks of 140,000, and pages, guide and web of 122,000; six searches for doubled code"
        " found less than 1 %"
    ),
)
def test_the_source_is_as_small_as_it_should_be() -> None:
    assert mass() <= 940_000
