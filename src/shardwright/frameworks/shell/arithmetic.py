"""Evaluation of arithmetic expressions in a shell script."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

from shardwright.frameworks.shell.variables_and_positional_parameters import Variables, value_of

_NAMED: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: _divided(a, b),
    ast.FloorDiv: lambda a, b: _divided(a, b),
    ast.Mod: lambda a, b: a - b * _divided(a, b),
    ast.LShift: lambda a, b: a << min(max(b, 0), 60),
    ast.RShift: lambda a, b: a >> min(max(b, 0), 60),
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = {
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MAX_NUMBER: Final = 10**15
_MAX_TEXT: Final = 200


def arithmetic(text: str, variables: Variables) -> int | None:
    """Evaluate an expression of whole numbers and variables by bash's rules; None if not possible.

    Operators are ``+ - * / % << >>`` and comparisons. Quotients are truncated toward zero.
    """
    plain = (
        _NAMED.sub(lambda match: match[1], text)
        .strip()
        .replace("&&", " and ")
        .replace("||", " or ")
    )
    if not plain or len(plain) > _MAX_TEXT:
        return None
    try:
        return _whole_number_of(ast.parse(plain, mode="eval").body, variables, 0)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _divided(dividend: int, divisor: int) -> int:
    """Quotient truncated toward zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _whole_number_of(node: ast.expr, variables: Variables, depth: int) -> int:
    """Whole number of a parsed arithmetic expression; ValueError for other expressions."""
    if depth > 50:
        raise ValueError(depth)

    def number_of(part: ast.expr) -> int:
        """Whole number of a part of the expression."""
        return _whole_number_of(part, variables, depth + 1)

    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
    elif isinstance(node, ast.Name):
        value = value_of(variables, node.id)
        number = int(
            value if isinstance(value, str) and value.isascii() and len(value) < 20 else "none"
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = -number_of(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        number = _OPERATORS[type(node.op)](number_of(node.left), number_of(node.right))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        number = int(
            _COMPARED[type(node.ops[0])](number_of(node.left), number_of(node.comparators[0]))
        )
    elif isinstance(node, ast.BoolOp):
        parts = [number_of(part) != 0 for part in node.values]
        number = int(all(parts) if isinstance(node.op, ast.And) else any(parts))
    else:
        raise ValueError(type(node))
    if abs(number) > _MAX_NUMBER:
        raise ValueError(number)
    return number
