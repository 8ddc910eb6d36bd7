"""Size of the source, measured so that neither formatting nor data files hide code."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.sources import SOURCE, nodes

DATA = (".json", ".yaml", ".yml", ".toml", ".csv", ".txt", ".md")

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def mass() -> int:
    """Syntax tree nodes without docstrings, + characters of string constants / 8, + bytes of text
    data files / 8."""
    number = letters = 0
    for tree in nodes().values():
        number += len(tree)
        for node in tree:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                letters += len(node.value)
            elif isinstance(node, DOCUMENTED):
                letters -= len(ast.get_docstring(node, clean=False) or "")
    data = sum(path.stat().st_size for path in SOURCE.rglob("*") if path.suffix in DATA)
    return number + letters // 8 + data // 8


def test_the_source_does_not_grow_unnoticed() -> None:
    assert 900_000 < mass() <= 1_300_000


@pytest.mark.xfail(
    strict=True,
    reason=(
        "1,297,000: the limit was set for a tree of 1,020,719, before option rules, readers and"
        " checks of 140,000, and pages, guide and web of 122,000; six searches for doubled code"
        " found less than 1 %"
    ),
)
def test_the_source_is_as_small_as_it_should_be() -> None:
    assert mass() <= 940_000
