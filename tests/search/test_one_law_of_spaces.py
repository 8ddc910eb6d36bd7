"""Of every axis and option of every runtime, an exclusion leaves a subset of the space and a pin
the intersection."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError, UsageError
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import under
from shardwright.runtime.framework_description import Options
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.search.grid.members.default_runtime_and_recompute_options import searched_options
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.grid_search_space import (
    AXES,
    Space,
    supported_option_parts,
    with_options,
)
from shardwright.search.grid.members.legal_degrees_and_axis_orders import idle_meshes
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.search.problems import Case, small_problem, thinned
from tests.tiers import examples

Member = tuple[Grid, Options]


def case_of(seed: int) -> Case:
    """A small problem of any runtime, and a part of its space with all its options and modules."""
    generator = random.Random(seed)
    drawn = small_problem(generator, nodes=(2, 4))
    problem = replace(drawn, runtime=load_runtime(generator.choice(runtime_names())))
    facts = facts_of(problem)
    whole = generator.choice((standard_space, exhaustive_space))(problem, facts)
    space = with_options(thinned(whole, generator, most=300), searched_options(problem))
    return Case(problem=problem, facts=facts, space=space)


def members_of(case: Case, space: Space) -> frozenset[Member]:
    """Legal, distinct members, each with the value of every option of its runtime."""
    found: set[Member] = set()
    for part in supported_option_parts(case.problem, space):
        problem = under(case.problem, part.chosen)
        for meshes in (None, idle_meshes(part, case.facts)):
            members = enumerate_members(problem, part, case.facts, meshes=meshes)
            for place in range(members.num_members):
                grid = member_grid(members, place)
                runtime = under(case.problem, grid.options).runtime
                values = {**dict(runtime.own), **dict(runtime.options)}
                found.add(
                    (
                        canonical(replace(grid, options=()), facts=case.facts),
                        tuple(sorted(values.items())),
                    )
                )
    return frozenset(found)


def having(members: Iterable[Member], option: str, value: str) -> frozenset[Member]:
    return frozenset(member for member in members if dict(member[1])[option] == value)


def choices_of(case: Case) -> list[tuple[str, str]]:
    """Every value of each axis of the space, and one that it has not; every value of each option
    that its runtime offers."""
    axes = [(axis, str(value)) for axis in AXES for value in case.space.of(axis)]
    outside = [
        ("tp", "1024"),
        ("mbs", "512"),
        ("shard", "999"),
        ("pp", "777"),
        ("cp", "9999"),
        ("recompute_layers", "4096"),
    ]
    options = [
        (name, value)
        for name, values in offered_values(case.problem.runtime).items()
        for value in values
    ]
    foreign = [
        (name, next(iter(option.values)))
        for name, option in BY_NAME.items()
        if name not in offered_values(case.problem.runtime)
    ]
    return [*axes, *outside, *options, *foreign[:3]]


def assert_law(case: Case, name: str, value: str) -> None:
    """The law of one value."""
    space = case.space
    whole = members_of(case, space)
    present = [str(v) for v in (space.option_values(name) if name in BY_NAME else space.of(name))]
    if value not in present:
        assert restricted(space, pins={}, excludes={name: (value,)}) == space
        return
    pinned = members_of(case, restricted(space, pins={name: (value,)}, excludes={}))
    assert pinned <= whole
    if present == [value]:
        assert pinned == whole
        with pytest.raises(UsageError, match=f"excluding {name}={value} leaves no value"):
            restricted(space, pins={}, excludes={name: (value,)})
        return
    narrower = restricted(space, pins={}, excludes={name: (value,)})
    left = members_of(case, narrower)
    assert left <= whole
    assert pinned | left == whole
    others = tuple(v for v in present if v != value)
    assert left == members_of(case, restricted(space, pins={name: others}, excludes={}))
    if name in BY_NAME:
        assert pinned == having(whole, name, value)
        assert left == whole - pinned
    else:
        assert [str(v) for v in narrower.of(name)] == list(others)
        assert all(narrower.of(axis) == space.of(axis) for axis in AXES if axis != name)


@examples(25, 2000, deadline=None)
@given(seed=st.integers(0, 10**6), draw=st.randoms(use_true_random=False))
def test_an_exclusion_is_a_subset_and_a_pin_the_intersection(
    seed: int, draw: random.Random
) -> None:
    case = case_of(seed)
    choices = choices_of(case)
    # As many options as axes, which have more values.
    name = draw.choice(sorted({name for name, _ in choices}))
    assert_law(case, *draw.choice([choice for choice in choices if choice[0] == name]))


def test_parts_that_a_runtime_refuses_are_no_members() -> None:
    """Megatron Bridge overlaps experts beside some dispatchers alone: another one that is pinned
    leaves the parts without."""
    for seed in range(100):
        case = case_of(seed)
        problem = replace(case.problem, runtime=load_runtime("megatron-bridge"))
        if case.facts.experts:
            break
    space = with_options(standard_space(problem, case.facts), searched_options(problem))
    pinned = restricted(space, pins={"dispatcher": ("allgather",)}, excludes={})
    assert {
        dict(part.chosen)["expert_overlap"] for part in supported_option_parts(problem, pinned)
    } == {"off"}
    with pytest.raises(RuntimeModelError, match="expert_overlap=on"):
        supported_option_parts(
            problem, restricted(pinned, pins={"expert_overlap": ("on",)}, excludes={})
        )


@pytest.mark.parametrize(
    ("runtime", "option", "value", "stages"),
    [
        ("deepspeed-0.16", "param_offload", "on", {3}),
        ("deepspeed-2022", "bf16_optimizer", "on", {1}),
    ],
)
def test_an_option_that_leaves_fewer_stages_has_the_members_of_these(
    runtime: str, option: str, value: str, stages: set[int]
) -> None:
    """Stages that the option leaves no room for are illegal with it; beside its other values they
    stay."""
    problem = replace(small_problem(random.Random(5), nodes=(2, 4)), runtime=load_runtime(runtime))
    facts = facts_of(problem)
    whole = thinned(standard_space(problem, facts), random.Random(5), most=300)
    whole = replace(
        whole,
        values=tuple(
            (axis, (0, 1, 2, 3) if axis == "zero" else values) for axis, values in whole.values
        ),
    )
    case = Case(
        problem=problem,
        facts=facts,
        space=restricted(whole, pins={option: (value, "off")}, excludes={}),
    )
    every = members_of(case, case.space)
    pinned = members_of(case, restricted(whole, pins={option: (value,)}, excludes={}))
    assert pinned == having(every, option, value)
    assert {grid.zero for grid, _ in pinned if grid.dp * grid.cp > 1} == stages
    assert {grid.zero for grid, _ in having(every, option, "off")} > stages
    with pytest.raises(RuntimeModelError, match="has no zero2"):
        members_of(case, restricted(whole, pins={option: (value,), "zero": ("2",)}, excludes={}))
