"""Expressions over a row's cells in option texts: ``graph_max={concurrency}``.

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

from shardwright.validation.tables.row_conditions import require_column

MOST: Final = 1 << 31
"""Largest value of an expression."""
MOST_SIZES: Final = 4096
"""Most numbers in a list from ``upto``."""
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
"""Name -> (least, most) number of arguments."""


def with_expressions_evaluated(text: str, cells: Mapping[str, Any]) -> str:
    """Replace each ``{expression}`` in `text` by its value for a row with these cells.

    Raises:
        ValueError: a cell in an expression is no whole number, or a number is above 2^31 or is
        divided by 0.
    """
    return _BRACES.sub(
        lambda match: _expression_text(ast.parse(match[1], mode="eval").body, cells), text
    )


def require_computable(text: str, names: Iterable[str]) -> None:
    """Raise ValueError for a malformed ``{expression}`` in a text, or names not in `names`.

    Raises:
        ValueError: the message names the fault.
    """
    if "{" in _BRACES.sub("", text) or "}" in _BRACES.sub("", text):
        raise ValueError(f"{text[:60]!r}: a brace is not closed")
    columns = tuple(names)
    for match in _BRACES.finditer(text):
        for leaf in _leaves(_syntax_tree(match[1]), match[1], depth=0):
            if isinstance(leaf, ast.Name):
                require_column(leaf.id, columns)


def _syntax_tree(expression: str) -> ast.expr:
    """Syntax tree of an expression; ValueError if it is malformed."""
    if len(expression) <= _MAX_TEXT:
        try:
            return ast.parse(expression, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    raise ValueError(f"{expression[:60]!r} is no expression")


def _leaves(node: ast.expr, expression: str, *, depth: int) -> Iterator[ast.expr]:
    """Yield names and numbers of an expression; ValueError but for + - * // and `_FUNCTIONS`."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        parts = [node.left, node.right]
    elif function := _called_function(node):
        assert isinstance(node, ast.Call)
        least, most = _FUNCTIONS[function]
        if not least <= len(node.args) <= most or (function == "upto" and depth):
            raise ValueError(
                f"{expression[:60]!r}: {function} takes {most} numbers, and upto gives no number"
            )
        parts = node.args
    elif isinstance(node, ast.Name) or (
        isinstance(node, ast.Constant) and type(node.value) is int and node.value <= MOST
    ):
        parts = []
    else:
        raise ValueError(
            f"{expression[:60]!r} has more than columns, whole numbers, + - * //,"
            f" {', '.join(_FUNCTIONS)}"
        )
    if depth > _MAX_DEPTH:
        raise ValueError(f"{expression[:60]!r} is too deep")
    if not parts:
        yield node
    for part in parts:
        yield from _leaves(part, expression, depth=depth + 1)


def _called_function(node: ast.expr) -> str:
    """Name of the allowed function that a node calls; empty for other nodes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return node.func.id if node.func.id in _FUNCTIONS else ""
    return ""


def _expression_text(node: ast.expr, cells: Mapping[str, Any]) -> str:
    """Text of an expression's value; ``upto(start,step,last)`` gives numbers with commas."""
    if _called_function(node) != "upto":
        return str(_bounded_number(node, cells))
    assert isinstance(node, ast.Call)
    start, step, last = (_bounded_number(argument, cells) for argument in node.args)
    if step < 1 or (last - start) // step > MOST_SIZES:
        raise ValueError(f"upto({start},{step},{last}) are more than {MOST_SIZES} numbers")
    return ",".join(map(str, [*range(start, last, step), last]))


def _bounded_number(node: ast.expr, cells: Mapping[str, Any]) -> int:
    """Whole number of an expression; ValueError if its size is above 2^31."""
    number = _expression_number(node, cells)
    if abs(number) > MOST:
        raise ValueError(f"{ast.unparse(node)[:60]} is above 2^31")
    return number


def _expression_number(node: ast.expr, cells: Mapping[str, Any]) -> int:
    """Whole number of an expression: cells, constants, + - * //, max, min, up (to a multiple)."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        cell = cells.get(node.id)
        if not isinstance(cell, int):
            raise ValueError(f"an option is computed from {node.id}, which is empty")
        return cell
    if isinstance(node, ast.BinOp):
        left, right = _bounded_number(node.left, cells), _bounded_number(node.right, cells)
        if right == 0 and isinstance(node.op, ast.FloorDiv):
            raise ValueError(f"{ast.unparse(node)[:60]} divides by nothing")
        return _OPERATORS[type(node.op)](left, right)
    assert isinstance(node, ast.Call)
    values = [_bounded_number(argument, cells) for argument in node.args]
    if _called_function(node) != "up":
        return max(values) if _called_function(node) == "max" else min(values)
    number, multiple = values
    if multiple < 1:
        raise ValueError(f"{ast.unparse(node)[:60]}: multiples of {multiple}")
    return -(-number // multiple) * multiple
