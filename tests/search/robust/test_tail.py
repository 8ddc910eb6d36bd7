"""The mean of the slow tail: against its definition, at its ends, and as states get slower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from shardwright.search.certificate_part_of_cluster_states import judged_by, tail_mean
from tests.tiers import examples

STATES = st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 1.0)), min_size=1, max_size=6)
LEVELS = st.floats(0.0, 0.999)


def split(states: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Seconds, and shares of the time that add up to one."""
    total = sum(weight for _, weight in states)
    return [seconds for seconds, _ in states], [weight / total for _, weight in states]


@examples(60)
@given(states=STATES, level=LEVELS)
def test_is_the_least_of_its_definition(states: list[tuple[float, float]], level: float) -> None:
    """min over c, u >= 0 of c + sum share_s u_s / (1 - a) with u_s >= t_s - c, as a linear
    program."""
    seconds, shares = split(states)
    cost = [1.0, *(share / (1.0 - level) for share in shares)]
    rows = np.hstack([-np.ones((len(seconds), 1)), -np.eye(len(seconds))])
    least = linprog(
        cost,
        A_ub=rows,
        b_ub=[-t for t in seconds],
        bounds=[(None, None), *[(0.0, None)] * len(seconds)],
    )
    assert tail_mean(seconds, shares, level=level) == pytest.approx(least.fun, rel=1e-7)


@examples(60)
@given(states=STATES, level=LEVELS, more=st.lists(st.floats(0.0, 10.0), min_size=6, max_size=6))
def test_never_falls_when_a_state_gets_slower(
    states: list[tuple[float, float]], level: float, more: list[float]
) -> None:
    seconds, shares = split(states)
    slower = [one + added for one, added in zip(seconds, more, strict=False)]
    assert tail_mean(slower, shares, level=level) >= tail_mean(seconds, shares, level=level) * (
        1 - 1e-12
    )


def test_its_ends_and_the_example_of_its_docstring() -> None:
    assert tail_mean([1.0, 3.0], [0.9, 0.1], level=0.0) == pytest.approx(1.2)
    assert tail_mean([1.0, 3.0], [0.9, 0.1], level=0.8) == pytest.approx(2.0)
    assert tail_mean([1.0, 3.0], [0.9, 0.1], level=0.9) == pytest.approx(3.0)
    assert tail_mean([1.0, 3.0], [0.9, 0.1], level=1.0) == 3.0
    assert [judged_by(level) for level in (0.0, 0.9, 1.0)] == [
        "the mean step over the scenarios",
        "the mean step of the slowest 0.1 of the time",
        "the step of the slowest scenario",
    ]
