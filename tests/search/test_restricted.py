"""Pins, exclusions and fewer devices: the answer is the best of what is left; what cannot be asked
for is an error."""

import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError, ShardwrightError, UsageError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import limit_devices
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.search.grid.members.pinned_and_excluded_values import PINNABLE, restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.strategy.grid.canonical_grid import canonical
from tests.search.brute import count, judge
from tests.search.problems import Case, every_member, facts_of, real_problem, small_case
from tests.tiers import examples, many, seeds

CAPACITY = 10**15


def assert_best_of(case: Case, space: Space) -> int:
    """The answer equals brute force over `space`; members it has."""
    counted = count(case.problem, space, case.facts)
    parts = every_member(case.problem, space, case.facts)
    fates = [
        sum(getattr(part, name) for part in parts)
        for name in ("enumerated", "illegal", "duplicates")
    ]
    assert fates == [counted.enumerated, counted.illegal, counted.duplicates]
    found = {
        canonical(member_grid(part, place), facts=case.facts)
        for part in parts
        for place in range(part.num_members)
    }
    assert found == set(counted.grids)
    if found:
        best = min(j.step_s for j in judge(case.problem, counted.grids.values()))
        answer = find(case.problem, space, case.facts, capacity=CAPACITY, top=1, hints=False)
        assert answer.prediction.step_time_s == pytest.approx(best, rel=1e-12)
    return len(found)


@pytest.mark.parametrize("seed", seeds(2, 50, first=2001))
def test_pins_and_exclusions(seed: int) -> None:
    case, generator = small_case(seed, most=many(700, 3000)), random.Random(seed)
    axes = [axis for axis in AXES if len(case.space.of(axis)) > 1]
    total = 0
    for axis in generator.sample(axes, min(3, len(axes))):
        words = tuple(str(v) for v in case.space.of(axis))
        word = generator.choice(words)
        pinned = restricted(case.space, pins={axis: (word,)}, excludes={})
        others = restricted(case.space, pins={}, excludes={axis: (word,)})
        assert [str(v) for v in pinned.of(axis)] == [word]
        assert word not in map(str, others.of(axis))
        total += assert_best_of(case, pinned) + assert_best_of(case, others)
        assert pinned.digest("") != others.digest("") != case.space.digest("")


@pytest.mark.parametrize("seed", seeds(1, 20, first=2100))
def test_pinned_dp(seed: int) -> None:
    case = small_case(seed, most=many(300, 3000))
    parts = every_member(case.problem, case.space, case.facts)
    degrees = {int(d) for part in parts for d in part.meshes.columns["dp"]}
    by_dp = [
        assert_best_of(case, restricted(case.space, pins={"dp": (str(dp),)}, excludes={}))
        for dp in sorted(degrees)
    ]
    assert sum(by_dp) == sum(part.num_members for part in parts)


def test_pinned_first_and_last() -> None:
    """Llama 2 7B on 8 devices with 6 layers on the first of 4 stages, 8 on the last."""
    problem = real_problem("llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8)
    facts = facts_of(problem)
    case = Case(problem=problem, facts=facts, space=standard_space(problem, facts))
    few = {
        "pp": ("4",),
        "tp": ("1", "2"),
        "zero": ("1",),
        "sp": ("0",),
        "cp": ("1",),
        "mbs": ("1",),
        "shard": ("0",),
        "ulysses": ("1",),
    }
    few |= {"recompute_layers": ("0", "3"), "vpp": ("1", "2"), "offload": ("0",)}
    space = restricted(case.space, pins=few | {"first": ("6",), "last": ("8",)}, excludes={})
    assert assert_best_of(case, space) > 4
    answer = find(problem, space, facts, capacity=CAPACITY, top=1)
    assert (answer.grid.first, answer.grid.last) == (6, 8)
    bounded = bound_space(problem, space, facts, capacity=CAPACITY)
    for place, bound in enumerate(bounded.seconds):
        (alone,) = judge(problem, [member_grid(bounded.members, place)])
        assert bound <= alone.path_s <= alone.step_s
        assert int(bounded.memory[place]) <= alone.need
    assert "first 6; last 8" in space.text()


def test_fewer_devices() -> None:
    """`--max-devices` searches a smaller cluster: another space, the best of it. (More devices need
    not be faster here.)"""
    case = next(
        c
        for c in map(small_case, range(2200, 2300))
        if c.facts.devices == 16 and c.problem.cluster.node.num_devices <= 4
    )
    smaller = replace(case.problem, cluster=limit_devices(case.problem.cluster, num_devices=11))
    facts = facts_of(smaller)
    space = replace(case.space, devices=facts.devices)
    assert facts.devices in (8, 10)
    assert assert_best_of(Case(problem=smaller, facts=facts, space=space), space)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"tpp": ("8",)}, "unknown axis 'tpp'"),
        ({"tp": ("0",)}, "tp=0 is not a whole number from 1"),
        ({"tp": ("-2",)}, "tp=-2 is not a whole number"),
        ({"tp": ("²",)}, "is not a whole number"),
        ({"tp": ("9" * 5000,)}, "is not a whole number"),
        ({"tp": ()}, "tp is pinned to nothing"),
        ({"zero": ("4",)}, "zero=4 is not a whole number from 0 to 3"),
        ({"offload": ("101",)}, "offload=101"),
        ({"schedule": ("1f1d",)}, "schedule=1f1d is no schedule"),
        (
            {"schedule": ("zb-h1",)},
            "a pin names one of the schedules gpipe, 1f1b, interleaved-1f1b, not zb-h1",
        ),
        ({"recompute": ("some",)}, "recompute=some is no recompute"),
        ({"order": ("tp-dp",)}, "order=tp-dp is not a permutation"),
        ({"first": ("3", "4")}, "first takes one value"),
    ],
)
def test_pins_that_mean_nothing(pins: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]+$") as caught:
        restricted(small_case(0).space, pins=pins, excludes={})
    assert message in caught.value.message
    assert caught.value.hint


def test_exclusions_that_leave_nothing() -> None:
    space = small_case(0).space
    words = tuple(str(v) for v in space.of("zero"))
    with pytest.raises(UsageError, match="leaves no value"):
        restricted(space, pins={}, excludes={"zero": words})
    with pytest.raises(UsageError, match="pinned, not excluded"):
        restricted(space, pins={}, excludes={"dp": ("2",)})


@pytest.mark.parametrize(
    ("pins", "lacks"),
    [
        ({"sp": ("1",)}, "(sp)"),
        ({"cp": ("2",)}, "(cp)"),
        ({"zero": ("0",)}, "zero0"),
        ({"schedule": ("gpipe",)}, "schedule gpipe"),
    ],
)
def test_pins_that_the_runtime_lacks(pins: dict[str, tuple[str, ...]], lacks: str) -> None:
    problem = real_problem(
        "llama-2-7b", "h100-sxm:8", seq_len=4096, global_batch=8, runtime="fsdp1-llm-foundry"
    )
    facts = facts_of(problem)
    space = restricted(standard_space(problem, facts), pins=pins, excludes={})
    with pytest.raises(RuntimeModelError, match="fsdp1-llm-foundry has no") as caught:
        find(problem, space, facts, capacity=CAPACITY, top=1)
    assert lacks in caught.value.message


words = (
    st.text(max_size=8)
    | st.integers().map(str)
    | st.sampled_from(("1f1b", "none", "tp-cp-ep-dp-pp", "1", "2", "1024"))
)
choices = st.dictionaries(
    st.sampled_from(PINNABLE) | st.text(max_size=4),
    st.lists(words, max_size=3).map(tuple),
    max_size=3,
)


@examples(25, 500)
@given(pins=choices, excludes=choices)
def test_any_pin_is_a_space_or_an_error_of_the_tree(
    pins: dict[str, tuple[str, ...]], excludes: dict[str, tuple[str, ...]]
) -> None:
    case = small_case(3, most=many(300, 3000))
    with contextlib.suppress(ShardwrightError):
        space = restricted(case.space, pins=pins, excludes=excludes)
        bound_space(case.problem, space, case.facts, capacity=CAPACITY)


def test_recomputed_layers_of_unlike_layers_are_not_searched() -> None:
    case = next(c for c in map(small_case, range(100)) if c.problem.model.name == "mixed")
    space = restricted(
        case.space, pins={"recompute_layers": ("1",), "recompute": ("full",)}, excludes={}
    )
    with pytest.raises(UsageError, match="all alike"):
        enumerate_members(case.problem, space, case.facts)
