"""Outcomes of rules, and what a plan is known to follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.guide.best_plan_record import BestPlan, with_pins
from shardwright.api.guide.judge_rule_against_best_plan import obeys, outcome_of, verdict_sentence
from shardwright.api.guide.search_cached_plans import PlanSearches
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Outcome
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid

REQUEST = Request(
    model="llama-3.2-1b",
    cluster="h100-sxm:8",
    seq_len=4096,
    global_batch=64,
    pins=(("tp", ("2", "4")),),
)


def test_pins_meet_those_of_the_user() -> None:
    assert with_pins(REQUEST, (("tp", ("4", "8")), ("pp", ("1",)))) == replace(
        REQUEST, pins=(("tp", ("4",)), ("pp", ("1",)))
    )
    assert with_pins(REQUEST, (("tp", ("8",)),)) is None


@pytest.mark.parametrize(
    ("pins", "follows"),
    [
        ((("tp", ("2", "4")), ("sp", ("1",))), True),
        ((("tp", ("4",)),), False),
        ((("sp", ("0",)),), False),
        ((("mbs", ("8",)), ("recompute", ("none",)), ("shard", ("0",))), True),
        ((("recompute_norms", ("on",)),), True),
        ((("recompute_mla", ("off",)),), False),
        ((("first", ("3",)),), False),
    ],
)
def test_a_plan_is_known_to_follow_pins(
    pins: tuple[tuple[str, tuple[str, ...]], ...], follows: bool
) -> None:
    grid = parse_grid("tp2 sp dp4 mbs8 recompute_norms=on")
    assert obeys(grid, pins) is follows
    assert not obeys(None, pins)


def test_a_plan_that_follows_pins_is_the_best_with_them() -> None:
    """What `obeys` saves is a search with the same answer."""
    searches = PlanSearches()
    request = replace(REQUEST, pins=())
    best = searches.best(request)
    assert best.grid is not None
    for axis in ("tp", "pp", "cp", "zero"):
        pins = ((axis, (str(getattr(best.grid, axis)),)),)
        pinned = with_pins(request, pins)
        assert pinned is not None
        assert obeys(best.grid, pins)
        assert searches.best(pinned).grid == best.grid
        assert searches.best(pinned).step_s == best.step_s


def test_outcomes() -> None:
    plan = BestPlan(request=REQUEST, grid=Grid())
    assert outcome_of(plan, 0.0) is Outcome.HOLDS
    assert outcome_of(plan, 0.032) is Outcome.LOSES
    assert outcome_of(plan, -0.032) is Outcome.GAINS
    assert outcome_of(None, None) is Outcome.NOT_POSSIBLE
    assert outcome_of(replace(plan, why="a rule", impossible=True), None) is Outcome.NOT_POSSIBLE
    assert outcome_of(replace(plan, why="memory"), None) is Outcome.DOES_NOT_FIT
    assert verdict_sentence(Outcome.LOSES, 0.032, plan) == "Here it loses 3.2 %."
    assert verdict_sentence(Outcome.LOSES, 0.1, replace(plan, gap=0.05)) == (
        "Here it loses 10.0 % with the best plan found, and at least 4.5 %."
    )
    assert "maybe nothing" in verdict_sentence(Outcome.LOSES, 0.1, replace(plan, gap=0.2))


def test_memory_and_rules_are_told_apart() -> None:
    searches = PlanSearches()
    large = replace(REQUEST, model="llama-3.1-70b", pins=(("tp", ("1",)), ("zero", ("0",))))
    assert not searches.best(replace(large, cluster="h100-sxm:1")).impossible
    illegal = replace(REQUEST, pins=(("dp", ("7",)), ("pp", ("3",))))
    assert searches.best(illegal).impossible
    assert searches.best(replace(REQUEST, pins=(("tpp", ("1",)),))).impossible
