"""The different rows of columns, and where each row is among them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    distinct,
    first_of_each,
)

LIMITS = st.sampled_from((1, 3, 50, 10**6, 10**12))


@given(
    st.lists(LIMITS, min_size=1, max_size=4), st.integers(0, 40), st.randoms(use_true_random=False)
)
def test_rows_are_told_apart_in_rising_order(
    limits: list[int], count: int, generator: object
) -> None:
    """By the table of all rows that there may be, and by sorting where it would be too large."""
    rows = np.array(
        [[generator.randint(0, most) for most in limits] for _ in range(count)], dtype=np.int64
    ).reshape(count, len(limits))  # type: ignore[attr-defined]
    columns = {str(place): rows[:, place] for place in range(len(limits))}
    few, place = distinct(columns)
    expected, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    assert np.array_equal(np.stack(list(few.values()), axis=1), expected)
    assert np.array_equal(place, inverse.reshape(-1))
    assert np.array_equal(first_of_each(columns)[0], first)
