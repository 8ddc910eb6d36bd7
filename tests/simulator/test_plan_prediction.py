"""Predictions of general plans: those of the grids that they equal, and sound ones of every other
plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.step.strategy_task_seconds import PART_NAMES
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.simulator.predict_plan import predict, predict_plan
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.step_breakdown import UNEVEN, breakdown, critical_class
from shardwright.simulator.step_time_interval import EXPOSED
from shardwright.strategy.grid.grid_to_plan import plan_of
from tests.search.problems import small_case
from tests.strategy.zoo_plans import ZooPlan, zoo
from tests.tiers import cases, in_both, numbers, random_of

NAMES = {*PART_NAMES, "slowdown", "optimizer", "bubble", "jitter", UNEVEN}


@in_both
def test_a_plan_that_is_a_grid_is_predicted_as_the_grid() -> None:
    """Every field, bit for bit: dense models and experts, tied and not."""
    generator = random_of(1)
    for seed in numbers(4, 100):
        case = small_case(seed)
        members = enumerate_members(case.problem, case.space, case.facts)
        for place in generator.sample(range(members.num_members), min(2, members.num_members)):
            grid = member_grid(members, place)
            plan = plan_of(
                grid, model=case.problem.model, global_batch=case.problem.job.global_batch
            )
            found = predict(case.problem, grid)
            assert found == predict_plan(case.problem, plan), grid
            assert {name for name, _ in found.breakdown_s} <= NAMES
            assert sum(stage.devices for stage in found.stages) == grid.devices


def zoo_problem(entry: ZooPlan) -> Problem:
    return Problem(
        model=entry.model,
        cluster=parse_cluster(entry.cluster),
        job=entry.job,
        runtime=load_runtime("megatron-core"),
    )


SMALL = [z for z in zoo() if z.trains and z.plan.devices <= 64]


@pytest.mark.parametrize("entry", cases(SMALL, 18), ids=lambda z: z.name)
def test_every_breakdown_adds_up(entry: ZooPlan) -> None:
    problem = zoo_problem(entry)
    result = simulate_plan(problem, entry.plan)
    parts = dict(breakdown(result))
    assert sum(parts.values()) == pytest.approx(result.step_time_s, rel=1e-12)
    assert parts.keys() <= NAMES
    assert min(parts.values()) >= 0.0
    # Reductions, sends and waits are no work: what is priced as work is what the critical class's
    # actions take alone.
    klass = critical_class(result)
    kinds = np.array([int(t.kind) for t in result.program.templates])[
        result.program.instances.template
    ]
    mine = (
        (result.program.instances.klass == klass)
        & (result.program.instances.stream == 0)
        & (kinds <= int(TaskKind.R))
    )
    worked = float(result.timeline.work[mine].sum()) / 1e12
    idle = ("slowdown", "optimizer", "bubble", "jitter", "sharding")
    assert sum(s for n, s in parts.items() if n not in idle) == pytest.approx(worked, rel=1e-2)


def test_a_prediction_of_unequal_devices() -> None:
    entry = next(z for z in zoo() if z.name == "14-survey3")
    found = predict_plan(zoo_problem(entry), entry.plan)
    assert [s.devices for s in found.stages] == [2, 1]
    low, high = found.interval_s
    assert low < found.step_time_s < high
    assert [s.capacity for s in found.stages] == _capacities(entry)
    full = [s.reserved / s.capacity for s in found.stages]
    assert found.reserved_bytes / found.capacity_bytes == max(full)
    assert 0 < found.mfu_causal < found.mfu_full < 1
    parts = dict(found.breakdown_s)
    exposed = next((d.share for d in found.doubts if d.name == "exposed communication"), 0.0)
    assert exposed == pytest.approx(sum(parts.get(n, 0.0) for n in EXPOSED) / found.step_time_s)
    assert len(found.sources) == len(set(found.sources))
    names = [s.quantity for s in found.sources]
    assert (
        sum(name.endswith(" memory") for name in names) == 2
    )  # one of each kind of device, by its name


def _capacities(entry: ZooPlan) -> list[int]:
    return [g.kind.accelerator.memory_bytes for g in parse_cluster(entry.cluster).groups]


def test_devices_that_do_nothing_are_idle_and_count_in_no_rate() -> None:
    """A plan for more devices than its stages have: as one for those alone."""
    entry = next(z for z in zoo() if z.name == "02-tp-sp")
    problem = replace(zoo_problem(entry), cluster=parse_cluster("h100-sxm:64"))
    found, wide = (
        predict_plan(problem, replace(entry.plan, devices=n)) for n in (entry.plan.devices, 64)
    )
    assert wide == found
    assert (wide.devices, wide.idle_devices) == (entry.plan.devices, 64 - entry.plan.devices)
    assert wide.tokens_per_s_per_device * entry.plan.devices == pytest.approx(wide.tokens_per_s)
