"""PyTorch's 1F1B refuses fewer microbatches than stages: so do the strategies of runtimes that run
it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardwright.api.request_to_problem import facts_of, problem_of
from shardwright.program.strategy_rule_violations import grid_violations, plan_violations
from shardwright.program.training_problem import Problem
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid

RULE = "runtime.microbatches"


def problem(runtime: str, batch: int) -> Problem:
    return problem_of(
        Request(
            model="llama-3.2-1b",
            cluster="h100-sxm:8",
            seq_len=1024,
            global_batch=batch,
            runtime=runtime,
        )
    )


def rules(of: Problem, text: str) -> set[str]:
    return {one.rule for one in grid_violations(of, parse_grid(text))}


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_rule_is_pytorchs(pp: int, batch: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stage = SimpleNamespace(
        num_stages=pp,
        stage_index=0,
        is_first=True,
        is_last=False,
        has_backward=True,
        device=None,
        submod=None,
    )
    try:
        schedules.Schedule1F1B(stage, batch)
        refused = False
    except ValueError as error:
        refused = "microbatches" in str(error)
    of = problem("torchtitan-0.2", batch)
    # One microbatch is exported as GPipe, whose order it is.
    assert (RULE in rules(of, f"pp{pp} mbs1 zero2 schedule=1f1b")) == (refused and batch > 1)
    assert RULE not in rules(of, f"pp{pp} mbs1 zero2 schedule=gpipe")


def test_other_runtimes_run_it() -> None:
    assert RULE not in rules(problem("megatron-core-0.12", 4), "pp8 mbs1")


def test_a_general_plan_is_asked_too() -> None:
    grid = parse_grid("pp8 mbs1 zero2")
    for runtime, broken in (("torchtitan-0.2", True), ("megatron-core-0.12", False)):
        of = problem(runtime, 4)
        plan = plan_of(grid, model=of.model, global_batch=4)
        assert (RULE in {one.rule for one in plan_violations(of, plan)}) == broken


def test_members_of_a_space_are_those_that_keep_it() -> None:
    """Exactly those that break it are missing."""
    of = problem("torchtitan-0.2", 4)
    pins = {"vpp": ("1",), "recompute": ("full",), "order": ("tp-cp-ep-dp-pp",), "cp": ("1",)}
    facts = facts_of(of)
    space = restricted(standard_space(of, facts), pins=pins, excludes={})
    found = []
    for fills in (True, False):
        members = enumerate_members(of, space, replace(facts, fills_pipeline=fills))
        found.append({member_grid(members, place) for place in range(members.num_members)})
    missing = found[1] - found[0]
    assert missing == {
        grid
        for grid in found[1]
        if grid.schedule == "1f1b" and 1 < 4 // (grid.dp * grid.microbatch) < grid.pp
    }
    assert missing
    assert found[0] < found[1]
    assert all(RULE in {one.rule for one in grid_violations(of, grid)} for grid in missing)
    assert not any(RULE in {one.rule for one in grid_violations(of, grid)} for grid in found[0])
