"""Open orders of plans are found for the plan's own times: no slower than named schedules, within
memory, the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.network.networks_of_plan_devices import kind_problem
from shardwright.errors import InfeasibleError, StrategyError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.scale_network_limit_devices_reserve_memory import reserve_memory
from shardwright.program.orders.deadlock_check import action_violations
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.orders.find_order_tables_by_stage_times import find_order_tables
from shardwright.search.orders.search_orders_of_plan import (
    has_searched_orders,
    stage_times_of_plan,
    with_searched_orders,
)
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from tests.jobs import training_job
from tests.search.problems import real_problem, small_problem
from tests.strategy.zoo_models import dense
from tests.strategy.zoo_plans import zoo
from tests.tiers import cases, in_both, many

MODEL = dense(layers=14)


def problem_of(cluster: str = "h100-sxm:4", *, batch: int = 12) -> Problem:
    return Problem(
        model=MODEL,
        cluster=parse_cluster(cluster),
        job=training_job(seq_len=2048, global_batch=batch),
        runtime=load_runtime("megatron-core"),
    )


def opened(plan: Plan, **parameters: int) -> Plan:
    orders = tuple(
        NamedOrder(schedule="table-search", lanes=o.lanes, parameters=tuple(parameters.items()))
        for o in plan.orders
    )
    return replace(plan, orders=orders)


def random_plan(generator: random.Random, problem: Problem) -> Plan | None:
    """A pipeline of `problem` under a schedule drawn at random, or None where that draw is not
    legal."""
    schedule = generator.choice(
        ("1f1b", "zb-h1", "zb-v", "dualpipe-v", "interleaved-1f1b", "chimera")
    )
    devices, pp = problem.cluster.num_devices, generator.choice((2, 4))
    tp = generator.choice((1, 2))
    if devices % (pp * tp):
        return None
    chunks = 2 if schedule in ("zb-v", "dualpipe-v", "interleaved-1f1b") else 1
    grid = Grid(
        tp=tp,
        pp=pp,
        vpp=chunks,
        dp=devices // pp // tp,
        schedule=schedule,
        zero=generator.choice((0, 1)),
    )
    try:
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
        simulate_plan(problem, plan)
    except StrategyError:
        return None
    return plan


def named(plan: Plan) -> Iterator[Plan]:
    """`plan` under every schedule of the registry."""
    for name in SCHEDULES:
        yield replace(
            plan, orders=tuple(NamedOrder(schedule=name, lanes=o.lanes) for o in plan.orders)
        )


@in_both
@pytest.mark.parametrize("block", cases(range(3), 1))
def test_no_named_order_that_fits_is_faster(block: int) -> None:
    """Of random plans, with room to spare and with little: the found order is legal and no slower
    than any named one that fits."""
    compared, seed = 0, block
    while compared < many(10, 40):
        seed += 3
        generator = random.Random(seed)
        problem = small_problem(generator)
        plan = random_plan(generator, problem)
        if plan is None:
            continue
        if generator.random() < 0.5:
            used = max(m.reserved for m in simulate_plan(problem, plan).memory)
            spare = problem.cluster.node.accelerator.memory_bytes - used
            problem = replace(
                problem, cluster=reserve_memory(problem.cluster, reserve_bytes=max(spare, 0))
            )
        try:
            found = with_searched_orders(problem, opened(plan), effort=0.1)
        except InfeasibleError:
            found = None
        if found is not None:
            assert not has_searched_orders(found)
            assert replace(found, orders=plan.orders) == plan
            assert action_violations(found, action_rows(found)) == ()
        done = simulate_plan(problem, found) if found is not None else None
        for other in named(plan):
            try:
                result = simulate_plan(problem, other)
            except StrategyError:
                continue
            if result.fits:
                assert done is not None, f"{seed}: {other.orders[0]} fits"
                assert done.step_time_s <= result.step_time_s, f"{seed}: {other.orders[0]}"
                compared += 1


def test_a_named_order_stands_where_no_table_is_faster() -> None:
    """DualPipe-V overlaps pairs of actions, which the search of tables leaves out."""
    problem = real_problem(
        "qwen3-30b-a3b", "h800-sxm:64", seq_len=4096, global_batch=256, runtime="deepseek-v3"
    )
    plan = plan_of(
        Grid(ep=16, dp=16, pp=4, vpp=2, zero=1, schedule="dualpipe-v"),
        model=problem.model,
        global_batch=256,
    )
    found = with_searched_orders(problem, opened(plan), effort=0.2)
    assert found == plan
    table = find_order_tables(opened(plan), times=stage_times_of_plan(problem, plan), effort=0.2)
    assert (
        simulate_plan(problem, table).step_time_s > simulate_plan(problem, plan).step_time_s * 1.01
    )


def test_the_same_question_has_the_same_answer() -> None:
    problem, plan = problem_of(), opened(plan_of(Grid(pp=4), model=MODEL, global_batch=12), seed=3)
    assert with_searched_orders(problem, plan, effort=0.1) == with_searched_orders(
        problem, plan, effort=0.1
    )
    closed = plan_of(Grid(pp=4), model=MODEL, global_batch=12)
    assert with_searched_orders(problem, closed) is closed


def test_times_are_those_of_the_simulator() -> None:
    problem, plan = problem_of(), plan_of(Grid(tp=2, sp=True, pp=2), model=MODEL, global_batch=12)
    times, result = stage_times_of_plan(problem, plan), simulate_plan(problem, plan)
    for chunk in range(2):
        step = result.costs.step(0, chunk, 0)
        assert times.forward[0, chunk] == round(float(step.forward_s[0]) * 1e9)
        assert (
            abs(
                int(times.input[0, chunk] + times.weight[0, chunk])
                - float(step.backward_s[0]) * 1e9
            )
            <= 1
        )
        assert times.held[0, chunk] == times.stash[0, chunk] == int(step.saved_bytes[0])
    assert times.send_forward[0, 0] > 0
    assert times.send_backward[0, 1] > 0
    assert times.edges == (((0, 1),),)


def test_found_orders_keep_within_the_memory() -> None:
    problem, plan = problem_of(), plan_of(Grid(pp=4), model=MODEL, global_batch=12)
    capacity = problem.cluster.node.accelerator.memory_bytes
    free = with_searched_orders(problem, opened(plan), effort=0.1)
    used = max(m.reserved for m in simulate_plan(problem, free).memory)
    held = int(stage_times_of_plan(problem, plan).held.max())
    # Two microbatches less than the order without a limit has on its fullest device.
    tight = replace(
        problem, cluster=reserve_memory(problem.cluster, reserve_bytes=capacity - used + 2 * held)
    )
    found = simulate_plan(tight, with_searched_orders(tight, opened(plan), effort=0.1))
    assert max(m.reserved for m in found.memory) <= tight.cluster.node.accelerator.memory_bytes
    full = replace(problem, cluster=reserve_memory(problem.cluster, reserve_bytes=capacity - 10**8))
    with pytest.raises(InfeasibleError, match="beside its activations"):
        with_searched_orders(full, opened(plan))


def test_limits_are_of_each_kind_of_device() -> None:
    entry = next(z for z in zoo() if z.name == "14-survey3")
    problem = Problem(
        model=entry.model,
        cluster=parse_cluster(entry.cluster),
        job=entry.job,
        runtime=load_runtime("megatron-core"),
    )
    limit = stage_times_of_plan(problem, entry.plan).limit
    assert limit is not None
    capacity = np.array(
        [kind_problem(problem, d).cluster.node.accelerator.memory_bytes for d in range(3)]
    )
    assert limit[0] == limit[1]
    assert (limit > 0).all()
    assert (limit < capacity).all()
