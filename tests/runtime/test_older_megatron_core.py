"""Releases of Megatron-Core from 0.5 to 0.11: what each brought is in no release before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright.api.request_to_problem import facts_of, problem_of
from shardwright.api.searches.exact_search_on_few_devices import plan_exact
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.errors import RuntimeModelError
from shardwright.program.strategy_rule_violations import grid_violations, plan_violations
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ExpertDispatch
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid

RELEASES = tuple(f"megatron-core-0.{n}" for n in range(5, 13))


def test_a_release_offers_what_the_next_one_does_and_no_more() -> None:
    for older, newer in pairwise(RELEASES):
        offers = [
            {(one.option, one.value) for one in load_runtime(name).offers}
            for name in (older, newer)
        ]
        assert offers[0] <= offers[1], (older, newer)
        assert set(load_runtime(older).zero_stages) <= set(load_runtime(newer).zero_stages)


@pytest.mark.parametrize(
    ("release", "option", "value"),
    [
        ("megatron-core-0.6", "dispatcher", "alltoall"),
        ("megatron-core-0.7", "capacity", "fixed"),
        ("megatron-core-0.8", "loss", "native"),
        ("megatron-core-0.8", "grad_average", "collective"),
        ("megatron-core-0.9", "fp8_gather", "on"),
        ("megatron-core-0.11", "permute_fusion", "on"),
        ("megatron-core-0.11", "moments", "bf16"),
        ("megatron-core-0.12", "dispatcher", "flex"),
        ("megatron-core-0.12", "loss", "te"),
        ("megatron-core-0.12", "recompute_norms", "on"),
    ],
)
def test_the_release_that_brought_an_option(release: str, option: str, value: str) -> None:
    """As the command lines of the tags have them."""
    before = RELEASES[RELEASES.index(release) - 1]
    assert (option, value) in {(one.option, one.value) for one in load_runtime(release).offers}
    assert (option, value) not in {(one.option, one.value) for one in load_runtime(before).offers}


def test_mixtures_are_slower_where_tokens_are_gathered() -> None:
    """0.5 has no all-to-all; the same strategy under 0.6 has."""
    assert load_runtime("megatron-core-0.5").expert_dispatch is ExpertDispatch.GATHERED
    grid, seconds = parse_grid("ep8 dp32 mbs1 zero1"), {}
    for release in ("megatron-core-0.5", "megatron-core-0.6"):
        request = Request(
            model="mixtral-8x7b",
            cluster="h100-sxm:32",
            seq_len=4096,
            global_batch=64,
            runtime=release,
        )
        seconds[release] = simulate_grid(problem_of(request), grid).step_time_s
    assert seconds["megatron-core-0.5"] > seconds["megatron-core-0.6"]


def test_the_published_speed_of_mixtral_under_0_9() -> None:
    """468 TFLOP/s of an H100 in bf16, dropless (Megatron-LM at 022bcb5,
    megatron/core/transformer/moe/README.md): on 64 H100 by its mapping of tp1 ep8 pp4 vpp8, 256
    samples of 4,096 tokens, all-to-all. Its FLOPs are those of megatron/training/training.py: whole
    attention.
    """
    request = Request(
        model="mixtral-8x7b",
        cluster="h100-sxm:64",
        seq_len=4096,
        global_batch=256,
        runtime="megatron-core-0.9",
    )
    seconds = simulate_grid(
        problem_of(request), parse_grid("ep8 pp4 vpp8 dp16 mbs1 zero1")
    ).step_time_s
    hidden, groups, ffn, vocab, layers, length = 4096, 8 / 32, 14336, 32_000, 32, 4096
    terms = 1 + groups + length / hidden + ffn / hidden * 2 * 1.5 + vocab / (2 * layers * hidden)
    flops = 12 * 256 * length * layers * hidden**2 * terms
    assert flops / seconds / 64 / 1e12 == pytest.approx(468, rel=0.05)


@pytest.mark.parametrize(
    ("release", "strategy", "rule"),
    [
        ("megatron-core-0.8", "pp4 dp2 mbs1 first=6 last=8", "runtime.layers"),
        ("megatron-core-0.9", "pp4 dp2 mbs1 first=6 last=8", None),
        ("megatron-core-0.11", "pp4 dp2 mbs1 layers=9,7,9,7", "runtime.layers"),
        ("megatron-core-0.12", "pp4 dp2 mbs1 layers=9,7,9,7", None),
        ("megatron-core-0.8", "pp4 dp2 mbs1", None),
        ("megatron-core-0.8", "cp2 cp-gather dp4 mbs1", "runtime.cp"),
        ("megatron-core-0.10", "cp2 cp-gather dp4 mbs1", None),
    ],
)
def test_what_older_releases_cannot_run(release: str, strategy: str, rule: str | None) -> None:
    request = Request(
        model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=32, runtime=release
    )
    broken = {one.rule for one in grid_violations(problem_of(request), parse_grid(strategy))}
    assert broken == ({rule} if rule else set())


@pytest.mark.parametrize("release", ["megatron-core-0.8", "megatron-core-0.11"])
def test_members_of_a_space_are_those_that_the_release_runs(release: str) -> None:
    """Of a mixture whose layers divide by few numbers of stages: exactly those that break its rules
    are missing."""
    problem = problem_of(
        Request(
            model="deepseek-v2-lite",
            cluster="h100-sxm:8",
            seq_len=1024,
            global_batch=16,
            runtime=release,
        )
    )
    facts = facts_of(problem)
    pins = {
        "recompute": ("full",),
        "order": ("tp-cp-ep-dp-pp",),
        "cp": ("1",),
        "zero": ("1",),
        "mbs": ("1",),
        "etp": ("1", "2", "4"),
    }
    space = restricted(standard_space(problem, facts), pins=pins, excludes={})
    free = replace(facts, ties_experts=False, equal_stages=False, equal_between=False)
    kept, every = (
        {member_grid(m, p) for p in range(m.num_members)}
        for m in (enumerate_members(problem, space, one) for one in (facts, free))
    )
    rules = {"runtime.layers", "runtime.experts"}
    broken = {
        grid for grid in every if rules & {one.rule for one in grid_violations(problem, grid)}
    }
    assert kept == every - broken
    assert broken


@pytest.mark.parametrize(
    "release", ["megatron-core-0.8", "megatron-core-0.9", "megatron-core-0.12"]
)
@pytest.mark.parametrize(
    "strategy",
    [
        "pp4 dp2 mbs1",
        "pp4 dp2 mbs1 first=6 last=8",
        "pp4 dp2 mbs1 layers=9,7,9,7",
        "pp2 vpp4 dp4 mbs1",
    ],
)
def test_a_general_plan_is_asked_what_its_grid_is(release: str, strategy: str) -> None:
    request = Request(
        model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=32, runtime=release
    )
    problem, grid = problem_of(request), parse_grid(strategy)
    of_grid = {one.rule for one in grid_violations(problem, grid)}
    of_plan = {one.rule for one in plan_violations(problem, plan_of_grid(problem, grid))}
    assert of_plan == of_grid
    assert of_grid == (
        {"runtime.layers"}
        if ("layers=" in strategy and release != RELEASES[-1])
        or ("first" in strategy and release == RELEASES[3])
        else set()
    )


@pytest.mark.parametrize(
    ("search", "cluster"),
    [
        (plan_joint, "h100-sxm:8"),
        (plan_exact, "h100-sxm:2"),
        (plan_mixed, "a100-sxm-80gb:8+h100-sxm:8"),
    ],
)
def test_a_search_that_chooses_layers_refuses_a_release_without_an_argument(
    search: Callable[[Request], object], cluster: str
) -> None:
    request = Request(
        model="llama-3.2-1b",
        cluster=cluster,
        seq_len=1024,
        global_batch=16,
        runtime="megatron-core-0.11",
        top=0,
    )
    with pytest.raises(
        RuntimeModelError,
        match=r"chooses the layers of each stage, which megatron-core-0\.11 has no argument for",
    ):
        search(request)
