"""Numbers that a launch script computes: text with expressions over a row's cells,
``graph_max={concurrency}``.

An expression has names of columns of whole numbers, whole numbers, ``+ - * //``, brackets, and the
functions max, min, ``up(n,64)`` (the next multiple of 64) and ``upto(256,256,n)`` (256, 512, .. and
n at last, with commas between).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from shardwright.errors import nearest

MOST: Final = 1 << 31
MOST_SIZES: Final = 4096
_MAX_TEXT: Final = 200
_MAX_DEPTH: Final = 20
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Final = {"max": (1, 8), "min": (1, 8), "up": (2, 2), "upto": (3, 3)}
"""Name -> how few and how many numbers it takes."""


def computed(text: str, cells: Mapping[str, Any]) -> str:
    """`text` with the numbers of its expressions for a row with these cells.

    Raises:
        ValueError: a cell is no whole number there, or a number is above 2^31 or divides by
        nothing.
    """
    return _BRACES.sub(lambda found: _shown(ast.parse(found[1], mode="eval").body, cells), text)


def require_computable(text: str, names: Iterable[str]) -> None:
    """Refuse a text whose expressions are none, or have other names than `names`.

    Raises:
        ValueError: it says what is wrong.
    """
    if "{" in _BRACES.sub("", text) or "}" in _BRACES.sub("", text):
        raise ValueError(f"{text[:60]!r}: a brace is not closed")
    known = tuple(names)
    for found in _BRACES.finditer(text):
        for part in _parts(found[1]):
            if isinstance(part, ast.Name) and part.id not in known:
                raise ValueError(
                    f"there is no column {part.id[:40]!r}: {nearest(part.id[:40], known)}"
                )


def _parts(expression: str) -> Iterator[ast.expr]:
    """Names and numbers of an expression, all of whose parts are those of the form above."""
    try:
        tree = ast.parse(expression, mode="eval").body if len(expression) <= _MAX_TEXT else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None:
        raise ValueError(f"{expression[:60]!r} is no expression")
    yield from _below(tree, expression, depth=0)


def _below(node: ast.expr, expression: str, *, depth: int) -> Iterator[ast.expr]:
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        inner = [node.left, node.right]
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        least, most = _FUNCTIONS[node.func.id]
        if not least <= len(node.args) <= most or (node.func.id == "upto" and depth):
            raise ValueError(
                f"{expression[:60]!r}: {node.func.id} takes {most} numbers, and upto gives no"
                " number"
            )
        inner = node.args
    elif not (
        isinstance(node, ast.Name)
        or (isinstance(node, ast.Constant) and type(node.value) is int and node.value <= MOST)
    ):
        raise ValueError(
            f"{expression[:60]!r} has more than columns, whole numbers, + - * //,"
            f" {', '.join(_FUNCTIONS)}"
        )
    if depth > _MAX_DEPTH:
        raise ValueError(f"{expression[:60]!r} is too deep")
    if not inner:
        yield node
    for one in inner:
        yield from _below(one, expression, depth=depth + 1)


def _shown(node: ast.expr, cells: Mapping[str, Any]) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "upto":
        first, step, last = (_number(one, cells) for one in node.args)
        if step < 1 or (last - first) // step > MOST_SIZES:
            raise ValueError(f"upto({first},{step},{last}) are more than {MOST_SIZES} numbers")
        return ",".join(map(str, [*range(first, last, step), last]))
    return str(_number(node, cells))


def _number(node: ast.expr, cells: Mapping[str, Any]) -> int:
    value = _value(node, cells)
    if abs(value) > MOST:
        raise ValueError(f"{ast.unparse(node)[:60]} is above 2^31")
    return value


def _value(node: ast.expr, cells: Mapping[str, Any]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        cell = cells.get(node.id)
        if not isinstance(cell, int):
            raise ValueError(f"an option is computed from {node.id}, which is empty")
        return cell
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, cells), _number(node.right, cells)
        if right == 0 and isinstance(node.op, ast.FloorDiv):
            raise ValueError(f"{ast.unparse(node)[:60]} divides by nothing")
        return _OPERATORS[type(node.op)](left, right)
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    values = [_number(one, cells) for one in node.args]
    if node.func.id == "up":
        if values[1] < 1:
            raise ValueError(f"{ast.unparse(node)[:60]}: multiples of {values[1]}")
        return -(-values[0] // values[1]) * values[1]
    return max(values) if node.func.id == "max" else min(values)
