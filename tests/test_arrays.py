"""Set operations on arrays of integers give what numpy gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import distinct_rows

_WHOLE = st.sampled_from([-(2**63), 2**63 - 1, 2**40]) | st.integers(-3, 3)


@given(st.integers(1, 70), st.integers(0, 30), st.data())
def test_distinct_rows_are_sorted_by_columns(width: int, count: int, data: st.DataObject) -> None:
    """Of narrow ranges, of ranges too wide for one number, and of many columns."""
    values = data.draw(st.sampled_from([_WHOLE, st.integers(-3, 3), st.integers(5, 6)]))
    drawn = data.draw(st.lists(values, min_size=3 * width, max_size=3 * width))
    rows = np.resize(np.array(drawn, dtype=np.int64), (count, width))
    expected = sorted(set(map(tuple, rows.tolist())))
    found = distinct_rows(rows)
    assert found.dtype == rows.dtype
    assert found.shape == (len(expected), width)
    assert list(map(tuple, found.tolist())) == expected
