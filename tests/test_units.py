"""Quantities for people: what the simulator's clock does not tell is not printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.units import (
    format_bare_seconds,
    format_seconds,
    format_time_change,
    zero_below_clock,
)
from tests.tiers import examples


@pytest.mark.parametrize("seconds", [0.0, 4.09e-13, -4.4e-16, 1e-30])
def test_what_rounding_leaves_is_nothing(seconds: float) -> None:
    assert (format_seconds(seconds), format_bare_seconds(seconds), zero_below_clock(seconds)) == (
        "0 s",
        "0",
        0.0,
    )


@pytest.mark.parametrize(
    ("seconds", "text", "bare"),
    [
        (1e-12, "0.001 ns", "1e-12"),
        (5e-13, "0.0005 ns", "5e-13"),
        (0.0831234, "83.12 ms", "0.08312"),
        (-2.0, "-2 s", "-2"),
    ],
)
def test_what_the_clock_tells_is_printed(seconds: float, text: str, bare: str) -> None:
    assert (format_seconds(seconds), format_bare_seconds(seconds)) == (text, bare)


@examples(100)
@given(st.floats(-1e6, 1e6))
def test_nothing_else_is_lost(seconds: float) -> None:
    assert zero_below_clock(seconds) in (0.0, seconds)
    assert abs(zero_below_clock(seconds) - seconds) < 0.5e-12


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (5.77, 4.61, "20.1 % less time"),
        (1.372, 1.383, "0.8 % more time"),
        (2.0, 1.0, "50.0 % less time"),
        (1.0, 2.0, "100.0 % more time"),
        (1.0, 1.0004, "the same"),
    ],
)
def test_a_change_of_a_time_is_told_as_time(before: float, after: float, text: str) -> None:
    """Half of the time is 50 % less time, and twice as fast: no word says which of the two."""
    assert format_time_change(after / before - 1) == text
