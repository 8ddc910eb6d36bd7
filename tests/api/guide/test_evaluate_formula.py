"""Formulas: their text is their value."""

from __future__ import annotations

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.guide.evaluate_formula import evaluate, formula, symbol

NUMBERS = st.floats(min_value=0.001, max_value=1e15)


@given(a=NUMBERS, b=NUMBERS, c=NUMBERS)
def test_the_substituted_text_has_the_value(a: float, b: float, c: float) -> None:
    found = formula(
        "something",
        "max(a + b, 2 * c) / sqrt(a * b)",
        symbol("a", "", a),
        symbol("b", "", b),
        symbol("c", "", c),
        source="a test",
    )
    assert isclose(found.value, max(a + b, 2 * c) / (a * b) ** 0.5, rel_tol=1e-12)
    assert isclose(evaluate(found.substituted, {}), found.value, rel_tol=1e-4)


@pytest.mark.parametrize("text", ["x", "open('f')", "a.b", "[1]", "a if b else 1", "'1'"])
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no symbol, number or arithmetic"):
        evaluate(text, {"a": 1.0, "b": 2.0})
