"""A search leaves a share of every device's memory free, because predictions of memory are a few
percent off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import capacity_of, problem_of
from shardwright.api.searches.grid_search import plan
from shardwright.errors import InfeasibleError, UsageError
from shardwright.search.answer_summary_text import TIGHT
from shardwright.search.search_request import HEADROOM, Request

ASKED = Request(model="mixtral-8x7b", cluster="h100-sxm:64", seq_len=4096, global_batch=256, top=0)


def full(request: Request) -> float:
    found = plan(request).prediction
    return found.reserved_bytes / found.capacity_bytes


@pytest.mark.proof
def test_by_default_a_plan_is_not_one_that_is_warned_of() -> None:
    assert 1 - HEADROOM <= TIGHT
    assert full(replace(ASKED, headroom=0.0)) > TIGHT
    assert full(ASKED) <= 1 - HEADROOM


def test_what_fits_without_headroom_is_said() -> None:
    asked = replace(ASKED, model="llama-2-7b", cluster="h100-sxm:2", global_batch=2, headroom=0.95)
    with pytest.raises(InfeasibleError, match="that plans may fill") as caught:
        plan(asked)
    assert caught.value.hint.startswith("what would fit: --headroom 0; or ")


@pytest.mark.parametrize("headroom", [-0.01, 1.0, float("nan")])
def test_a_headroom_is_a_share(headroom: float) -> None:
    with pytest.raises(UsageError, match="headroom"):
        capacity_of(replace(ASKED, headroom=headroom), problem_of(ASKED))
