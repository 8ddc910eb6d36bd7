"""A joint search has every option that grids are searched over: no grid under any of them is faster
than its answer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.errors import InfeasibleError, RuntimeModelError, UsageError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.default_runtime_and_recompute_options import searched_options
from shardwright.search.grid.members.grid_search_space import (
    Space,
    supported_option_parts,
    with_options,
)
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.joint.find_joint import NAMED_ORDERS, find_joint
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_space import joint_space
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_plan
from tests.search.joint.answers import JointAnswer, part_of
from tests.search.problems import Case, small_problem
from tests.tiers import seeds

RUNTIMES = (
    "megatron-core-0.12",
    "megatron-core-0.16",
    "megatron-bridge",
    "nanotron",
    "torchtitan-0.2",
    "deepseek-v3",
)
ROUNDING = 1 + 1e-9


def case_of(seed: int) -> tuple[Case, int]:
    """A small problem whose runtime has options to choose from, its standard space with them, and
    bytes of a device."""
    generator = random.Random(seed)
    problem = replace(
        small_problem(generator, nodes=(2, 4)), runtime=load_runtime(generator.choice(RUNTIMES))
    )
    facts = facts_of(problem)
    space = with_options(standard_space(problem, facts), searched_options(problem))
    whole = smallest_memory_bytes(problem.cluster)
    try:
        best = find(problem, space, facts, capacity=whole, top=1, hints=False)
    except InfeasibleError:
        return Case(problem=problem, facts=facts, space=space), whole
    capacity = int(best.prediction.reserved_bytes * generator.choice((0.8, 0.95, 1.0, 1.3)))
    return Case(problem=problem, facts=facts, space=space), capacity


def best_grid_of(case: Case, space: Space, *, capacity: int) -> float:
    """Seconds of the best grid under one value of each option, inf where none fits."""
    try:
        return find(
            case.problem, space, case.facts, capacity=capacity, top=1, hints=False
        ).certificate.best_s
    except InfeasibleError:
        return float("inf")


def assert_no_grid_is_faster(case: Case, capacity: int) -> JointAnswer | None:
    """Each part of the options alone, and all of them as a grid search has them."""
    grids = [
        best_grid_of(case, part, capacity=capacity)
        for part in (case.space, *supported_option_parts(case.problem, case.space))
    ]
    try:
        answer = find_joint(
            case.problem, case.space, case.facts, capacity=capacity, orders=NAMED_ORDERS
        )
    except InfeasibleError:
        assert min(grids) == float("inf")
        return None
    assert answer.step_time_s <= min(grids)
    assert answer.certificate.lower_bound_s <= min(grids) * ROUNDING
    assert part_of(answer).complete
    if answer.detail.best is not None:
        again = simulate_plan(case.problem, general_plan(case.problem, answer.detail.best.plan))
        assert again.step_time_s == answer.step_time_s
        assert {name for name, _ in answer.detail.best.plan.grids[0].options} >= {
            name for name, _ in case.space.options
        }
    return answer


@pytest.mark.parametrize("seed", seeds(3, 200, first=8101))
def test_no_grid_under_any_option_is_faster(seed: int) -> None:
    assert_no_grid_is_faster(*case_of(seed))


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("gpt-oss-20b", "a100-sxm-40gb:8"),
        pytest.param("mixtral-8x7b", "h100-sxm:8", marks=pytest.mark.proof),
    ],
)
def test_what_was_worse_than_a_grid(model: str, cluster: str) -> None:
    """Two questions whose best grids have other values than the runtime's own."""
    asked = Request(
        model=model, cluster=cluster, seq_len=4096, global_batch=32, space="joint-named"
    )
    answer, grid = plan_joint(asked), plan(replace(asked, space="standard", top=0))
    assert grid.grid.options
    assert answer.step_time_s <= grid.prediction.step_time_s


def test_pipelines_follow_pins_and_the_certificate_names_what_they_fix() -> None:
    """Pipelines have no shard groups, no offload and no modules of their own, nor any chunks a rank
    that are excluded."""
    problem = replace(
        small_problem(random.Random(4), nodes=(4,)), runtime=load_runtime("megatron-core-0.12")
    )
    facts = facts_of(problem)
    space = with_options(standard_space(problem, facts), searched_options(problem))
    fixed = dict(joint_space(space).fixed)
    assert fixed["offload"] == "0"
    assert fixed["recompute_norms"] == "off"
    assert all(f"{name} {value}" in joint_space(space).text() for name, value in fixed.items())
    for axis, word in (("offload", "100"), ("recompute_norms", "on")):
        pinned = joint_space(restricted(space, pins={axis: (word,)}, excludes={}))
        assert not pinned.base.of("pp")
        assert not pinned.fixed
    assert 2 not in joint_space(restricted(space, pins={}, excludes={"vpp": ("2",)})).chunks
    part = supported_option_parts(problem, space)[0]
    assert joint_space(space).with_options(part, zero_stages=(0, 1)).base.chosen == part.chosen


@pytest.mark.parametrize("axis", ["recompute", "recompute_layers", "first", "last"])
def test_what_a_joint_search_chooses_itself_is_not_pinned(axis: str) -> None:
    word = "none" if axis == "recompute" else "1"
    asked = Request(
        model="llama-3.2-1b",
        cluster="h100-sxm:8",
        seq_len=4096,
        global_batch=16,
        space="joint",
        pins=((axis, (word,)),),
    )
    with pytest.raises(UsageError, match="of each rank") as caught:
        plan_joint(asked)
    assert axis in caught.value.hint


def test_options_that_a_runtime_lacks_are_refused() -> None:
    asked = Request(
        model="llama-3.2-1b",
        cluster="h100-sxm:8",
        seq_len=4096,
        global_batch=16,
        space="joint",
        runtime="fsdp1",
    )
    with pytest.raises(RuntimeModelError, match="tp_overlap"):
        plan_joint(replace(asked, pins=(("tp_overlap", ("dgrad",)),)))
