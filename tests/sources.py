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


def walk(tree: ast.AST) -> list[ast.AST]:
    """What `ast.walk` goes through, in half its time."""
    found = [tree]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [part for part in value if isinstance(part, ast.AST)]
    return found


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """All of each module's tree."""
    return {module: walk(tree) for module, tree in trees().items()}


@cache
def registered(module: str) -> dict[str, frozenset[str]]:
    """``module:attribute`` targets in the registries and tables of a module that composes them of
    parts, by the variable that holds them."""
    composes = any(
        isinstance(node, ast.Name) and node.id in ("Registry", "_PACKAGE")
        for node in nodes()[module]
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
