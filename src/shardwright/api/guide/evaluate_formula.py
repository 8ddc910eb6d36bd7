"""Evaluate a formula's text with the user's numbers, so that text and value cannot differ."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Formula,
    Symbol,
)

_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "sqrt": math.sqrt,
    "min": min,
    "max": max,
    "ceil": math.ceil,
}


def formula(
    quantity: str, expression: str, *symbols: Symbol, unit: str = "", source: str
) -> Formula:
    """The formula with the symbols' values substituted, and its value.

    Raises:
        ValueError: the expression has something other than symbols, numbers and arithmetic.
    """
    values = {symbol.name: symbol.value for symbol in symbols}
    return Formula(
        quantity=quantity,
        expression=expression,
        symbols=symbols,
        substituted=re.sub(
            r"[A-Za-z_]\w*",
            lambda match: number_text(values[match[0]]) if match[0] in values else match[0],
            expression,
        ),
        value=float(evaluate(expression, values)),
        unit=unit,
        source=source,
    )


def symbol(name: str, meaning: str, value: float, unit: str = "") -> Symbol:
    """A symbol of a formula with its value."""
    return Symbol(name=name, meaning=meaning, value=value, unit=unit)


def number_text(value: float) -> str:
    """Text of a number in a formula: integers below 10 million in full, others as ``%.6g``."""
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.6g}"


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Value of an arithmetic expression of named values.

    Raises:
        ValueError: the expression has something other than names, numbers and arithmetic.
    """
    return float(_value(ast.parse(expression, mode="eval").body, values))


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    """Value of a node: name, number, binary operation or function call; else ValueError."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result = _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
        return float(result)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = _FUNCTIONS.get(node.func.id)
        if function is not None:
            return float(function(*(_value(argument, values) for argument in node.args)))
    raise ValueError(f"{ast.unparse(node)} is no symbol, number or arithmetic")
