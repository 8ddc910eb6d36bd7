"""Sizes of a model that formulas of rules use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.guide.best_plan_of_request import BestPlan
from shardwright.api.guide.request_facts import facts_of_request
from shardwright.api.guide.search_cached_plans import PlanSearches
from tests.api.guide.canonical_problems import CANONICAL


@pytest.mark.parametrize(
    ("name", "width"),
    [("dense-8b", 14336), ("experts", 14336), ("latent-attention", 2816), ("multimodal", 11008)],
)
def test_the_width_is_that_of_a_feed_forward_layer(name: str, width: int) -> None:
    """Also where layers differ: two shared experts of 1,408 columns, and a vision tower."""
    request = CANONICAL[name]
    facts = facts_of_request(request, BestPlan(request=request), PlanSearches().best)
    assert facts.feed_forward_width == width


def test_a_token_uses_a_part_of_a_layer_of_experts() -> None:
    """Mixtral: 2 of 8 experts of three matrices, and less than the attention's size beside them."""
    request = replace(CANONICAL["experts"], cluster="mi300x:8")
    facts = facts_of_request(request, BestPlan(request=request), PlanSearches().best)
    used = 2 * 3 * 4096 * 14336
    assert used < facts.layer_parameters < 1.2 * used
