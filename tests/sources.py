"""The package's sources, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from shardwright.registry import Registry
from tools.error_index import SOURCE, parsed


@cache
def trees() -> dict[str, ast.Module]:
    """By the name that a module is imported by; searches for cycles leave a million nodes out."""
    gc.disable()
    try:
        return parsed(SOURCE)
    finally:
        gc.freeze()
        gc.enable()


@cache
def registered(module: str) -> dict[str, frozenset[str]]:
    """``module:attribute`` targets in the registries and tables of a module that composes them of
    parts, by the variable that holds them."""
    tree = trees()[module]
    composes = any(
        isinstance(node, ast.Name) and node.id in ("Registry", "_PACKAGE")
        for node in ast.walk(tree)
    )
    if not composes or module == "shardwright.registry":
        return {}
    return {
        name: frozenset(targets_of(value)) for name, value in vars(import_module(module)).items()
    }


def targets_of(value: object) -> Iterator[str]:
    """The targets in a registry, or in the keys and values of a mapping."""
    if isinstance(value, Registry):
        yield from value.targets.values()
    elif isinstance(value, Mapping):
        yield from (
            text for pair in value.items() for text in pair if isinstance(text, str) and ":" in text
        )
