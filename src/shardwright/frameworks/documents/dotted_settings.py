"""Settings of JSON, YAML, TOML and Python files as flat dotted names with dashes."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardwright.errors import DataError, ShardwrightError
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.units import MAX_INTEGER_BITS

MAX_DEPTH: Final = 30
MAX_SETTINGS: Final = 5_000
_HINT: Final = "a configuration file of a framework"


def settings_of_document(text: str, suffix: str, name: str) -> Arguments:
    """Settings of a JSON, YAML or TOML text: dotted names, lower case with dashes -> text.

    Args:
        suffix: ``.json``, ``.yaml``, ``.yml`` or ``.toml``.
        name: the file's name, for errors.

    Raises:
        DataError: it cannot be read, or holds too much.
    """
    return _flattened(_document(text, suffix, name))


def settings_of_python(text: str, name: str) -> Arguments:
    """Settings that a Python file assigns or passes to calls, by dotted name; nothing is run.

    ``cfg.model.tp = 8`` and ``{"model.tp": 8}`` give ``model.tp``; ``Parallelism(tp=8)`` gives
    ``parallelism.tp``.

    Raises:
        DataError: it is no Python.
    """
    tree = tree_of(text, name)
    # An assignment after a call overrides the call's arguments.
    return dict([*_keyword_arguments(tree), *_assignments(tree)])


def _document(text: str, suffix: str, name: str) -> Any:
    """Parse a JSON, YAML or TOML text, by the file's `suffix`; DataError if it is none."""
    try:
        if suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
        from shardwright.hardware.files.bounded_yaml import (
            read_yaml,  # yaml only where a file is read
        )

        return read_yaml(text, what=name[:60])
    except ShardwrightError as error:
        raise DataError(error.message, hint=error.hint) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name[:60]}: {str(error)[:200]}", hint=_HINT) from None


def _flattened(document: Any, before: str = "", depth: int = 0) -> dict[str, str]:
    """Flatten mappings: dotted names (lower case, dashes) -> text; lists one text, no nulls."""
    if depth > MAX_DEPTH:
        raise DataError(
            f"a configuration nested deeper than {MAX_DEPTH}",
            hint=_HINT,
        )
    if isinstance(document, Mapping):
        settings: dict[str, str] = {}
        for key, value in document.items():
            name = f"{before}.{key}" if before else str(key)
            settings |= _flattened(value, name.replace("_", "-").lower(), depth + 1)
            if len(settings) > MAX_SETTINGS:
                raise DataError(
                    f"a configuration of more than {MAX_SETTINGS:,} settings",
                    hint=_HINT,
                )
        return settings
    if not before:
        raise DataError("a configuration without names", hint=_HINT)
    if document is None or document is False:
        return {before: "false"} if document is False else {}
    if document is True:
        return {before: "true"}
    if isinstance(document, list | tuple):
        return {before: " ".join(_setting_text(item, before) for item in document[:1000])}
    return {before: _setting_text(document, before)}


def _setting_text(value: object, name: str) -> str:
    """Text of a setting's plain value as launch files write it; DataError for a long number."""
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise DataError(f"the number of {name[:60]} is too long", hint=_HINT)
    # Of a table or a list inside a list, numbers may still be too long.
    try:
        return str(value)
    except ValueError:
        raise DataError(f"a number of {name[:60]} is too long", hint=_HINT) from None


def tree_of(text: str, name: str) -> ast.Module:
    """Parse a Python file to a syntax tree.

    Raises:
        DataError: it is no Python, or has an integer of more than `MAX_INTEGER_BITS` bits.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{name[:60]}: {str(error)[:100]}", hint="a Python file") from None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int)
            and node.value.bit_length() > MAX_INTEGER_BITS
        ):
            raise DataError(
                f"{name[:60]}: a number in line {node.lineno} is too long",
                hint=_HINT,
            )
    return tree


def _keyword_arguments(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield keyword arguments of all calls as (``function.keyword``, text), lower case, dashes."""
    for node in ast.walk(tree):
        called = dotted(node.func) if isinstance(node, ast.Call) else []
        for keyword in node.keywords if isinstance(node, ast.Call) and called else ():
            listed = (
                named_value(keyword.value)
                if isinstance(keyword.value, ast.List | ast.Tuple)
                else None
            )
            value = _literal_text(keyword.value) or listed or _dotted_name(keyword.value)
            if keyword.arg and value is not None:
                yield f"{called[-1]}.{keyword.arg}".replace("_", "-").lower(), value


def _assignments(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name behind the variable, text) of assigned attributes and of dicts' dotted keys."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Attribute)
        ):
            parts = dotted(node.targets[0])
            value = _literal_text(node.value) or _single_literal_argument(node.value)
            if parts and value is not None:
                yield ".".join(parts[1:]).replace("_", "-").lower(), value
        if isinstance(node, ast.Dict):
            for key, item in zip(node.keys, node.values, strict=True):
                value = _literal_text(item) or _dotted_name(item)
                if (
                    isinstance(key, ast.Constant)
                    and isinstance(key.value, str)
                    and "." in key.value
                    and value is not None
                ):
                    yield key.value.replace("_", "-").lower(), value


def dotted(node: ast.expr) -> list[str]:
    """Names in an expression ``a.b.c``, in order; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < MAX_DEPTH:
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def _single_literal_argument(node: ast.expr) -> str | None:
    """Text of the single literal argument of a call, such as ``get_config("a")``; else None."""
    return (
        _literal_text(node.args[0])
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        else None
    )


def named_value(node: ast.expr) -> str | None:
    """Text of a call's single literal argument, else a dotted name; of a list, joined; or None."""
    if isinstance(node, ast.List | ast.Tuple):
        return (
            " ".join(name for element in node.elts[:100] if (name := named_value(element))) or None
        )
    return _single_literal_argument(node) or (
        _dotted_name(node) if isinstance(node, ast.Call | ast.Attribute | ast.Name) else None
    )


def _dotted_name(node: ast.expr) -> str | None:
    """Dotted name of an expression or of a called function; ``none`` for None; None if neither.

    ``FullAC.Config()`` gives ``FullAC.Config``.
    """
    if isinstance(node, ast.Constant) and node.value is None:
        return "none"
    return ".".join(dotted(node.func if isinstance(node, ast.Call) else node)) or None


def _literal_text(node: ast.expr) -> str | None:
    """Text of a literal expression; None for other expressions and for dicts."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return (
        next(iter(_flattened({"x": value}).values()), None) if not isinstance(value, dict) else None
    )
