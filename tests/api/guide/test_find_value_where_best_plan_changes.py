"""Break-evens are found by bisection over searched values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.guide.best_plan_record import BestPlan, searched_plan
from shardwright.api.guide.break_even_axis_units import BREAK_EVEN_AXES
from shardwright.api.guide.find_value_where_best_plan_changes import (
    BreakEvenQuestion,
    find_break_even,
)
from shardwright.api.guide.search_cached_plans import PlanSearches
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid

REQUEST = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=1, global_batch=1)


@given(
    values=st.lists(st.integers(1, 10**6), min_size=1, max_size=20, unique=True).map(sorted),
    data=st.data(),
)
def test_the_change_is_between_the_two_values(values: list[int], data: st.DataObject) -> None:
    """Plans have a pipeline from the value number `change` on, or before it, as searches find."""
    change = data.draw(st.integers(0, len(values)))
    above = data.draw(st.booleans())
    searches = PlanSearches()
    for place, value in enumerate(values):
        request = replace(REQUEST, global_batch=value)
        grid = Grid(pp=2 if (place >= change) is above else 1)
        searches.keep(request, BestPlan(request=request, grid=grid))
    found = find_break_even(
        BreakEvenQuestion(
            axis="global batch",
            values=tuple(values),
            plan_at=lambda value: searches.best(replace(REQUEST, global_batch=value)),
            has=lambda plan: plan.grid is not None and plan.grid.pp > 1,
            change="A pipeline",
        ),
        contents=searched_plan,
    )
    assert searches.count == len(values)
    sides = [(side.value, side.has) for side in found.sides]
    if 0 < change < len(values):
        assert sides == [(values[change - 1], not above), (values[change], above)]
        assert (f"up to {values[change - 1]:,} seq" in found.sentence) is not above
        assert (f"from {values[change]:,} seq" in found.sentence) is above
    elif (change == 0) is above:
        assert sides == [(values[0], True)]
        assert "already at" in found.sentence
    else:
        assert sides == [(values[-1], False)]
        assert "at no searched value" in found.sentence


@pytest.mark.parametrize(
    ("axis", "value", "text"),
    [
        ("sequence length", 131072, "131,072 tokens"),
        ("global batch", 1, "1 sequence a step"),
        ("devices", 2, "2 devices"),
        ("network of a device", 35 * 10**9, "35 GB/s of a device's network"),
        ("memory of a device", 3 * 2**35, "96 GiB of a device's memory"),
        ("requests in flight", 1024, "1,024 requests in flight"),
        ("prompt", 128, "128 prompt tokens"),
    ],
)
def test_a_value_has_its_number_and_unit(axis: str, value: int, text: str) -> None:
    assert BREAK_EVEN_AXES[axis].text(value) == text
