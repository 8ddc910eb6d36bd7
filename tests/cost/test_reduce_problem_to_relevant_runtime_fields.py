"""What parts of pricing ignore of a runtime: a step costs the same, to the last bit, where its
parts read all of it."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem, sums_problem
from shardwright.cost.step import price_one_stage_device_family as device_family_costs
from shardwright.cost.tables import all_block_costs_by_degrees as problem_tables
from shardwright.cost.tables import plan_block_costs as plan_blocks
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.dtype import Dtype
from shardwright.errors import RuntimeModelError
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.cost.prices import rows_of
from tests.jobs import training_job
from tests.program.small import cluster_of
from tests.program.small import problem_of as small_problem
from tests.strategies import expert_model
from tests.tiers import chosen, in_both, in_proof

GRIDS = (
    Grid(tp=2, sp=True, dp=4, pp=2, ep=2, zero=1),
    Grid(cp=2, dp=4, ep=4, zero=3, recompute=Recompute.SELECTIVE),
    Grid(tp=4, dp=4, etp=4, ep=2, zero=2, recompute=Recompute.FULL),
)
OFTEN = (
    "megatron-core-0.16",
    "megatron-core-0.5",
    "maxtext",
    "torchtitan-0.2",
    "deepspeed-2022",
    "deepseek-v3",
)


@cache
def problem_of(runtime: str, compute: Dtype) -> Problem:
    """A model of all sorts of blocks on two nodes."""
    job = replace(training_job(seq_len=64, global_batch=16), compute=compute)
    return small_problem(
        expert_model(predictors=1), cluster_of(16, node=8), runtime=load_runtime(runtime), job=job
    )


def is_same_table(problem: Problem, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The table of blocks over a grid's row is the same where it reads the problem itself; in a
    proof over the rows of all grids."""
    rows = rows_of(GRIDS if in_proof() else (grid,))
    found = layer_table(problem, rows)
    with monkeypatch.context() as patched:
        patched.setattr(problem_tables, "block_problem", lambda given, _: replace(given))
        again = layer_table(replace(problem), rows)
    return all(
        np.array_equal(getattr(found, field.name), getattr(again, field.name))
        for field in fields(found)
    )


def is_same(one: SimulatedPlan, other: SimulatedPlan) -> bool:
    times = ((one.timeline.work, other.timeline.work), (one.timeline.finish, other.timeline.finish))
    kept = (one.memory, one.host_memory) == (other.memory, other.host_memory)
    return (
        kept
        and one.step_time_s == other.step_time_s
        and all(np.array_equal(*pair) for pair in times)
    )


def reading_all(problem: Problem, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> SimulatedPlan:
    """A step whose parts read the problem itself, which no cache knows."""
    with monkeypatch.context() as patched:
        patched.setattr(plan_blocks, "block_problem", lambda given, _: given)
        patched.setattr(device_family_costs, "sums_problem", lambda given: given)
        return simulate_grid(replace(problem), grid)


FORMATS = (Dtype.BF16, Dtype.FP8)


@pytest.mark.parametrize(
    ("name", "compute"),
    chosen(
        product(runtime_names(), FORMATS),
        {(name, FORMATS[number % 2]) for number, name in enumerate(runtime_names())},
    ),
)
def test_runtimes_cost_the_same_where_all_is_read(
    name: str, compute: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, grid = problem_of(name, compute), GRIDS[runtime_names().index(name) % len(GRIDS)]
    assert is_same(simulate_grid(problem, grid), reading_all(problem, grid, monkeypatch))
    assert is_same_table(problem, grid, monkeypatch)


@in_both
@pytest.mark.parametrize(
    ("name", "compute"), [*((name, Dtype.BF16) for name in OFTEN), (OFTEN[0], Dtype.FP8)]
)
def test_options_cost_the_same_where_all_is_read(
    name: str, compute: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of an option; outside a proof in eight bits one in three, under other runtimes
    than the first one in two, and tables of one in three."""
    problem, tried = problem_of(name, compute), 0
    every = 1 if in_proof() else 3
    step = every if compute is Dtype.FP8 else 1 if in_proof() or name == OFTEN[0] else 2
    for number, offer in enumerate(problem.runtime.offers):
        if number % step:
            continue
        try:
            own = under(problem, ((offer.option, offer.value),))
        except RuntimeModelError:  # it runs with other values of another option alone
            continue
        if own is problem:
            continue
        grid, tried = GRIDS[number % len(GRIDS)], tried + 1
        assert is_same(simulate_grid(own, grid), reading_all(own, grid, monkeypatch)), (
            offer.option,
            offer.value,
        )
        if (name, compute) == (OFTEN[0], Dtype.BF16) and not number % every:
            assert is_same_table(own, grid, monkeypatch), (offer.option, offer.value)
    assert tried >= 4


@pytest.mark.parametrize(
    "grid",
    [Grid(cp=2, dp=4, ep=4, zero=2, offload=50), Grid(cp=2, dp=4, ep=4, zero=3, offload=100)],
)
def test_offloaded_states_cost_the_same_where_all_is_read(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that go to host memory as they are reduced took no time in a plan, and some in its
    lower bound."""
    problem = problem_of("deepspeed", Dtype.BF16)
    assert problem.runtime.gradients_on_host
    done = simulate_grid(problem, grid)
    assert is_same(done, reading_all(problem, grid, monkeypatch))
    stays = replace(
        problem, runtime=replace(problem.runtime, name="on the device", gradients_on_host=False)
    )
    assert done.timeline.work.sum() > simulate_grid(stays, grid).timeline.work.sum()


def test_options_of_the_step_alone_price_no_block_and_those_of_blocks_no_sum() -> None:
    problem = replace(problem_of("megatron-core-0.16", Dtype.BF16))

    def is_known(option: str, value: str) -> tuple[list[bool], bool]:
        own = under(problem, ((option, value),))
        blocks = [
            block_problem(own, block) is block_problem(problem, block)
            for block in problem.model.blocks
        ]
        return blocks, sums_problem(own) is sums_problem(problem)

    names = [block.name for block in problem.model.blocks]
    assert names == ["embed", "layer", "head", "sparse", "mtp_head"]
    for option, value in (
        ("grad_overlap", "off"),
        ("param_overlap", "off"),
        ("p2p_overlap", "off"),
        ("transformer", "local"),
    ):
        assert is_known(option, value) == ([True] * 5, True)
    assert is_known("grad_check", "off") == ([True] * 5, False)
    assert is_known("attention", "flash-2") == ([True, False, True, False, True], True)
    assert is_known("dispatcher", "flex")[0] == [True, True, True, False, True]
    assert is_known("loss", "te") == ([True, True, False, True, False], True)
    assert is_known("wgrad_fusion", "off") == ([False] * 5, True)
