"""Values known by what they are, and one of those that are equal."""

from __future__ import annotations

from fractions import Fraction

from shardwright.api.request_to_problem import problem_of
from shardwright.program.identity_cache_keys import Same, one_of_equals
from shardwright.search.search_request import Request

REQUEST = Request(model="llama-3-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=32)


def test_a_value_equals_itself_alone() -> None:
    one, other = Fraction(1, 2), Fraction(1, 2)
    assert one == other
    assert Same(one) == Same(one)
    assert Same(one) != Same(other)


def test_one_of_equal_values_is_the_first() -> None:
    one, other = Fraction(3, 4), Fraction(3, 4)
    assert one_of_equals(one) is one
    assert one_of_equals(other) is one
    assert one_of_equals(Fraction(3, 5)) == Fraction(3, 5)


def test_equal_requests_are_one_problem() -> None:
    assert problem_of(REQUEST) is problem_of(REQUEST)
