"""Sizes of a model that formulas of rules use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.api.guide.canonical_problems import CANONICAL
from tests.api.guide.facts_of_requests import training_facts_without_plans


@pytest.mark.parametrize(
    ("name", "width"),
    [("dense-8b", 14336), ("experts", 14336), ("latent-attention", 2816), ("multimodal", 11008)],
)
def test_the_width_is_that_of_a_feed_forward_layer(name: str, width: int) -> None:
    """Also where layers differ: two shared experts of 1,408 columns, and a vision tower."""
    request = CANONICAL[name]
    facts = training_facts_without_plans(request)
    assert facts.feed_forward_width == width


def test_a_token_uses_a_part_of_a_layer_of_experts() -> None:
    """Mixtral: 2 of 8 experts of three matrices, and less than the attention's size beside them."""
    request = replace(CANONICAL["experts"], cluster="mi300x:8")
    facts = training_facts_without_plans(request)
    used = 2 * 3 * 4096 * 14336
    assert used < facts.layer_parameters < 1.2 * used
