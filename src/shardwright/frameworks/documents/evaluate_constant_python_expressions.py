"""Value of a Python expression of constants and known names, found without running it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

MAX_DEPTH: Final = 20
UNKNOWN: Final = object()
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[..., object]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_MAX_NUMBER: Final = 10**15
Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class CallByName:
    """Result of a call that is not followed, known only by its name."""

    text: str
    begins: bool = False


def value_of(node: ast.expr, known: Mapping[str, object], depth: int) -> object:
    """Evaluate an expression of constants and known names; `UNKNOWN` if that is not possible."""
    if depth > MAX_DEPTH:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | bool | None) else UNKNOWN
    if isinstance(node, ast.Name):
        return known.get(node.id, UNKNOWN)
    if isinstance(node, ast.List | ast.Tuple):
        elements = [value_of(element, known, depth + 1) for element in node.elts[:1000]]
        return (
            UNKNOWN
            if any(one is UNKNOWN or isinstance(one, CallByName) for one in elements)
            else elements
        )
    if isinstance(node, ast.UnaryOp):
        inner = value_of(node.operand, known, depth + 1)
        if isinstance(node.op, ast.Not):
            return UNKNOWN if inner is UNKNOWN else not inner
        return (
            -inner if isinstance(node.op, ast.USub) and isinstance(inner, int | float) else UNKNOWN
        )
    if isinstance(node, ast.IfExp):
        held = value_of(node.test, known, depth + 1)
        return (
            UNKNOWN
            if held is UNKNOWN
            else value_of(node.body if held else node.orelse, known, depth + 1)
        )
    if isinstance(node, ast.BoolOp):
        return _either(
            [value_of(operand, known, depth + 1) for operand in node.values],
            both=isinstance(node.op, ast.And),
        )
    if isinstance(node, ast.BinOp | ast.Compare):
        return _computed(node, known, depth)
    return UNKNOWN


def _either(values: Sequence[object], *, both: bool) -> object:
    """Truth of ``a and b`` (`both`) or ``a or b``; `UNKNOWN` if unknown operands decide."""
    if any(operand is not UNKNOWN and bool(operand) != both for operand in values):
        return not both
    return UNKNOWN if any(operand is UNKNOWN for operand in values) else both


def _computed(node: ast.BinOp | ast.Compare, known: Mapping[str, object], depth: int) -> object:
    """Evaluate a binary operation or a comparison; `UNKNOWN` if that is not possible."""
    if isinstance(node, ast.Compare) and len(node.ops) != 1:
        return UNKNOWN
    right_node = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
    left, right = value_of(node.left, known, depth + 1), value_of(right_node, known, depth + 1)
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    try:
        if isinstance(node, ast.Compare):
            kind = type(node.ops[0])
            if kind in (ast.In, ast.NotIn):
                return (left in right) == (kind is ast.In)  # type: ignore[operator]
            compare: Callable[[object, object], object] = _COMPARED[kind]
            return compare(left, right)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return UNKNOWN
        result = _OPERATORS[type(node.op)](left, right)
        return result if abs(result) <= _MAX_NUMBER else UNKNOWN
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return UNKNOWN
