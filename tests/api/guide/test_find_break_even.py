"""Break-evens are found by bisection over searched values."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.guide.find_break_even import find_break_even
from shardwright.api.guide.guide_rule import BreakEvenQuestion
from shardwright.api.guide.search_cached_plans import BestPlan, PlanSearches
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid

REQUEST = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=1, global_batch=1)


@given(
    values=st.lists(st.integers(1, 10**6), min_size=1, max_size=20, unique=True).map(sorted),
    data=st.data(),
)
def test_the_change_is_between_the_two_values(values: list[int], data: st.DataObject) -> None:
    """Plans have a pipeline from the value number `change` on, as searches would find."""
    change = data.draw(st.integers(0, len(values)))
    searches = PlanSearches()
    for place, value in enumerate(values):
        request = replace(REQUEST, global_batch=value)
        grid = Grid(pp=2 if place >= change else 1)
        searches.keep(request, BestPlan(request=request, grid=grid))
    found = find_break_even(
        BreakEvenQuestion(
            axis="global batch",
            values=tuple(values),
            request_at=lambda value: replace(REQUEST, global_batch=value),
            has=lambda grid: grid.pp > 1,
            change="A pipeline",
        ),
        searches,
    )
    assert searches.count == len(values)
    if change == 0:
        assert (found.below, found.above) == (None, values[0])
    elif change == len(values):
        assert (found.below, found.above) == (values[-1], None)
    else:
        assert (found.below, found.above) == (values[change - 1], values[change])
