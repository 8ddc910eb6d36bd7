"""Options computed from a row's cells."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.validation.tables.evaluate_expressions_in_option_text import (
    require_computable,
    with_expressions_evaluated,
)
from tests.tiers import examples

CELLS = {"isl": 8192, "osl": 1024, "concurrency": 100, "tp": 8, "dpa": None, "model_name": "m"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("memory=0.8 kv=fp8", "memory=0.8 kv=fp8"),
        ("graph_max={concurrency} context={isl+osl+20}", "graph_max=100 context=9236"),
        ("{max(8192,up(concurrency+isl+64,64))}", "8384"),
        ("{up(128,64)}", "128"),
        ("{min(concurrency//tp,64)}", "12"),
        ("{(2+1)*concurrency-1}", "299"),
        ("sizes=1,2,{upto(256,256,1000)}", "sizes=1,2,256,512,768,1000"),
        ("{upto(16,8,32)}", "16,24,32"),
        ("{upto(16,8,8)}", "8"),
    ],
)
def test_numbers(text: str, value: str) -> None:
    require_computable(text, CELLS)
    assert with_expressions_evaluated(text, CELLS) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a={conc}", "there is no column 'conc'"),
        ("a={concurrency", "a brace is not closed"),
        ("a=}", "a brace is not closed"),
        ("a={}", "is no expression"),
        ("a={isl+}", "is no expression"),
        ("a={isl/2}", "has more than"),
        ("a={isl**99}", "has more than"),
        ("a={'x'*9}", "has more than"),
        ("a={1.5}", "has more than"),
        ("a={True}", "has more than"),
        ("a={__import__('os')}", "has more than"),
        ("a={isl.real}", "has more than"),
        ("a={max(isl,key=osl)}", "has more than"),
        ("a={up(isl)}", "up takes 2"),
        ("a={upto(1,1,2)+1}", "upto gives no number"),
        ("a={9999999999}", "has more than"),
        ("a={" + "(" * 190 + "1" + "}", "is no expression"),
        ("a={" + "+".join(["1"] * 60) + "}", "is too deep"),
        ("a={" + "1" * 300 + "}", "is no expression"),
    ],
)
def test_what_is_no_expression(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        require_computable(text, CELLS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{dpa}", "dpa, which is empty"),
        ("{isl//(tp-8)}", "divides by nothing"),
        ("{isl*isl*isl}", "above 2^31"),
        ("{up(isl,tp-8)}", "multiples of 0"),
        ("{upto(1,1,isl)}", "more than 4096 numbers"),
        ("{upto(1,tp-8,isl)}", "more than 4096 numbers"),
    ],
)
def test_what_has_no_value_for_a_row(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        with_expressions_evaluated(text, CELLS)


@examples(50, 500)
@given(st.text(alphabet="isl+-*/(),{}0123456789 upto", max_size=40))
def test_whatever_is_let_in_has_a_value_or_a_reason(text: str) -> None:
    with suppress(ValueError):
        require_computable(text, CELLS)
        assert isinstance(with_expressions_evaluated(text, CELLS), str)
