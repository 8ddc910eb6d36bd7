"""Open orders of plans are found for the plan's own times: no slower than named schedules, within memory, the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.plan_network import kind_problem
from shardwright.errors import InfeasibleError
from shardwright.hardware.expression import parse_cluster
from shardwright.hardware.overrides import reserve_memory
from shardwright.job.training import training_job
from shardwright.program.action_check import action_violations
from shardwright.program.action_rows import action_rows
from shardwright.program.problem import Problem
from shardwright.runtime.registry import load_runtime
from shardwright.search.orders.resolve_plan import is_open, resolved, stage_times
from shardwright.simulator.plans import simulate_plan
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.order import Named, Table
from shardwright.strategy.plan import Plan
from tests.strategy.zoo_models import dense
from tests.strategy.zoo_plans import zoo

MODEL = dense(layers=14)


def problem_of(cluster: str = "h100-sxm:4", *, batch: int = 12) -> Problem:
    return Problem(
        model=MODEL,
        cluster=parse_cluster(cluster),
        job=training_job(seq_len=2048, global_batch=batch),
        runtime=load_runtime("megatron-core"),
    )


def opened(plan: Plan, **parameters: int) -> Plan:
    orders = tuple(Named(schedule="table-search", lanes=o.lanes, parameters=tuple(parameters.items())) for o in plan.orders)
    return replace(plan, orders=orders)


def test_a_found_order_is_no_slower_than_the_named_one() -> None:
    problem = problem_of()
    for grid in (Grid(pp=4), Grid(pp=4, schedule="zb-h1"), Grid(pp=2, dp=2), Grid(pp=4, schedule="chimera")):
        plan = plan_of(grid, model=MODEL, global_batch=12)
        found = resolved(problem, opened(plan), effort=0.2)
        assert not is_open(found)
        assert all(isinstance(order, Table) for order in found.orders)
        assert replace(found, orders=plan.orders) == plan
        assert action_violations(found, action_rows(found)) == ()
        # The search leaves out what the simulation has beside chunks and transfers: reductions hide a little differently.
        assert simulate_plan(problem, found).step_time_s <= simulate_plan(problem, plan).step_time_s * 1.01


def test_the_same_question_has_the_same_answer() -> None:
    problem, plan = problem_of(), opened(plan_of(Grid(pp=4), model=MODEL, global_batch=12), seed=3)
    assert resolved(problem, plan, effort=0.1) == resolved(problem, plan, effort=0.1)
    closed = plan_of(Grid(pp=4), model=MODEL, global_batch=12)
    assert resolved(problem, closed) is closed


def test_times_are_those_of_the_simulator() -> None:
    problem, plan = problem_of(), plan_of(Grid(tp=2, sp=True, pp=2), model=MODEL, global_batch=12)
    times, result = stage_times(problem, plan), simulate_plan(problem, plan)
    for chunk in range(2):
        step = result.costs.step(0, chunk, 0)
        assert times.forward[0, chunk] == round(float(step.forward_s[0]) * 1e9)
        assert abs(int(times.input[0, chunk] + times.weight[0, chunk]) - float(step.backward_s[0]) * 1e9) <= 1
        assert times.held[0, chunk] == times.stash[0, chunk] == int(step.saved_bytes[0])
    assert times.send_forward[0, 0] > 0
    assert times.send_backward[0, 1] > 0
    assert times.edges == (((0, 1),),)


def test_found_orders_keep_within_the_memory() -> None:
    problem, plan = problem_of(), plan_of(Grid(pp=4), model=MODEL, global_batch=12)
    capacity = problem.cluster.node.accelerator.memory_bytes
    free = resolved(problem, opened(plan), effort=0.1)
    used = max(m.reserved for m in simulate_plan(problem, free).memory)
    held = int(stage_times(problem, plan).held.max())
    # Two microbatches less than the order without a limit has on its fullest device.
    tight = replace(problem, cluster=reserve_memory(problem.cluster, reserve_bytes=capacity - used + 2 * held))
    found = simulate_plan(tight, resolved(tight, opened(plan), effort=0.1))
    assert max(m.reserved for m in found.memory) <= tight.cluster.node.accelerator.memory_bytes
    full = replace(problem, cluster=reserve_memory(problem.cluster, reserve_bytes=capacity - 10**8))
    with pytest.raises(InfeasibleError, match="beside its activations"):
        resolved(full, opened(plan))


def test_limits_are_of_each_kind_of_device() -> None:
    entry = next(z for z in zoo() if z.name == "14-survey3")
    problem = Problem(model=entry.model, cluster=parse_cluster(entry.cluster), job=entry.job, runtime=load_runtime("megatron-core"))
    limit = stage_times(problem, entry.plan).limit
    assert limit is not None
    capacity = np.array([kind_problem(problem, d).cluster.node.accelerator.memory_bytes for d in range(3)])
    assert limit[0] == limit[1]
    assert (limit > 0).all()
    assert (limit < capacity).all()
