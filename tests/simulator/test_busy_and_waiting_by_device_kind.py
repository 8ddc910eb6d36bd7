"""What kinds of devices do in a step and wait for: the whole step is told, and the fast wait for
the slow."""

from __future__ import annotations

import random

import pytest

from shardwright.program.training_problem import Problem
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import general_plan
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.simulator.busy_and_waiting_by_device_kind import LINKS, kind_names
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.search.mixed.members import batch_of, drawn_plan, mixed_problem, with_batch
from tests.search.mixed.test_find_fastest import tiny
from tests.tiers import in_both, numbers

PIPELINE = """plan two devices 2
lane main samples 8 in 8
  stages embed+{first}, {second}+head on 0, 1
    all = .
order 1f1b(main)
"""


def predicted(problem: Problem, plan: Plan) -> Prediction:
    """The prediction, whose kinds are checked to tell the whole step."""
    result = simulate_plan(problem, plan)
    found = predict_plan(problem, plan, result, with_sources=False)
    jitter = dict(found.breakdown_s).get("jitter", 0.0)
    for kind in found.kinds:
        assert kind.busy_s > 0
        assert kind.busy_s + sum(seconds for _, seconds in kind.waits_s) + jitter == pytest.approx(
            found.step_time_s, rel=1e-9
        )
        assert {what for what, _ in kind.waits_s} <= {*kind_names(problem.cluster), LINKS}
    assert sum(kind.devices for kind in found.kinds) == found.devices
    return found


@in_both
@pytest.mark.parametrize("seed", numbers(3, 80))
def test_busy_seconds_and_waits_are_the_step(seed: int) -> None:
    generator = random.Random(seed)
    problem = mixed_problem(generator)
    pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
    drawn = drawn_plan(pipelines, generator, lanes=generator.choice((1, 2, 3)))
    if drawn is None:
        pytest.skip("no room for so many lanes")
    problem = with_batch(problem, batch_of(pipelines.stage_costs, drawn))
    found = predicted(problem, general_plan(pipelines.stage_costs, drawn))
    names = {kind.name for kind in found.kinds}
    assert {stage.kind for stage in found.stages} == names <= set(kind_names(problem.cluster))


def waits(cluster: str, *, first: int, second: int) -> dict[str, dict[str, float]]:
    """By kind, what it waits for, of a pipeline of two stages."""
    found = predicted(
        tiny(cluster, batch=8), parse_plan(PIPELINE.format(first=first, second=second))
    )
    return {kind.name: dict(kind.waits_s) for kind in found.kinds}


@pytest.mark.parametrize("first", ["h100-sxm", "v100-sxm-16gb"])
def test_the_fast_wait_for_the_slow(first: str) -> None:
    other = "v100-sxm-16gb" if first == "h100-sxm" else "h100-sxm"
    found = waits(
        f"{first}:1+{other}:1", first=1 + (first != "h100-sxm"), second=1 + (first == "h100-sxm")
    )
    fast, slow = found["h100-sxm"], found["v100-sxm-16gb"]
    assert fast["v100-sxm-16gb"] > 2 * sum(slow.values())
    assert "h100-sxm" not in fast
    assert fast["v100-sxm-16gb"] > 5 * fast.get(LINKS, 0.0)


def test_more_layers_on_the_fast_kind_turn_the_wait_around() -> None:
    even, uneven = (
        waits("a100-sxm-80gb:1+a100-sxm-40gb:1", first=first, second=3 - first) for first in (1, 2)
    )
    one, other = "a100-sxm-80gb", "a100-sxm-40gb"
    assert even[one][other] > uneven[one][other]
    assert uneven[other][one] > even[other][one]


def test_uniform_clusters_have_one_kind_of_which_nothing_is_said() -> None:
    found = predict_plan(
        tiny("h100-sxm:2", batch=8),
        parse_plan(PIPELINE.format(first=1, second=2)),
        with_sources=False,
    )
    assert found.kinds == ()
    assert {stage.kind for stage in found.stages} == {""}


def test_kinds_of_several_zones_are_told_apart() -> None:
    found = predicted(
        tiny("h100-sxm:1@east+h100-sxm:1@west,east~west=10gbps/1ms", batch=8),
        parse_plan(PIPELINE.format(first=1, second=2)),
    )
    assert [kind.name for kind in found.kinds] == ["h100-sxm@east", "h100-sxm@west"]
    assert dict(found.kinds[0].waits_s)[LINKS] > 1e-3
