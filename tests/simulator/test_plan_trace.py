"""Traces of simulated steps: every action of the rows, in the timeline's time, with the memory that
the prediction has."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardwright.errors import UsageError
from shardwright.program.step_trace import ACTIONS, StepTrace
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.traced_device_seconds_by_activity import device_times
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.simulator.step_breakdown import breakdown, critical_class
from tests.simulator.general import two_stages
from tests.simulator.test_plans import problem_of
from tests.strategy.zoo_plans import ZooPlan, zoo
from tests.tiers import cases

SMALL = tuple(case for case in zoo() if case.trains and case.plan.devices <= 64)


def check(result: SimulatedPlan, trace: StepTrace) -> None:
    rows = result.program.rows
    wanted = set()
    for device in (d.device for d in trace.devices):
        row = next(i for i, devices in enumerate(rows.devices) if device in devices)
        for at in range(int(rows.row_start[row]), int(rows.row_start[row + 1])):
            place = (
                int(rows.lane[at]),
                int(rows.chunk[at]),
                int(rows.microbatch[at]),
                int(rows.slice[at]),
            )
            wanted.add((device, TaskKind(int(rows.kind[at])).name, *place))
    assert trace.actions == wanted
    assert trace.end_s == result.timeline.seconds
    assert trace.step_s == result.step_time_s
    for one, two in pairwise(trace.spans):
        if (one.device, one.track) == (two.device, two.track):
            assert one.end_s <= two.start_s
    for times in device_times(trace):
        assert times.compute_s + times.communication_s + times.waiting_s == pytest.approx(
            trace.end_s, rel=1e-12
        )
        assert min(times.compute_s, times.communication_s, times.waiting_s) >= 0


@pytest.mark.parametrize("case", cases(SMALL, 18), ids=lambda case: case.name)
def test_zoo(case: ZooPlan) -> None:
    problem = problem_of(case)
    result = simulate_plan(problem, with_searched_orders(problem, case.plan))
    trace = simulated_trace(result, plan=case.name)
    check(result, trace)
    assert sum(d.alike for d in trace.devices) == sum(
        len(c.devices) for c in result.program.classes
    )
    for number, one in enumerate(result.program.classes):
        items = dict(result.memory[number].items)
        always = sum(
            size
            for item, size in items.items()
            if item not in ("activations", "logits", "temporary")
        )
        held = [sample.held for sample in trace.memory if sample.device == one.devices[0]]
        assert max(held) == always + items["activations"]
        assert held[0] == held[-1] == always


def test_a_device_of_a_class_does_what_the_first_does() -> None:
    result = two_stages()
    first, second = (simulated_trace(result, plan="two", devices=(device,)) for device in (0, 1))
    assert [(s.kind, s.start_s, s.end_s) for s in first.spans] == [
        (s.kind, s.start_s, s.end_s) for s in second.spans
    ]
    assert {s.device for s in second.spans} == {1}
    assert [d.alike for d in (*first.devices, *second.devices)] == [1, 1]
    assert [d.alike for d in simulated_trace(result, plan="two").devices] == [2, 2]


def test_tensor_parallel_actions_wait_for_their_collectives() -> None:
    compute = [s for s in simulated_trace(two_stages(), plan="two").spans if s.kind in ("F", "B")]
    assert all(0 < s.exposed_s < s.end_s - s.start_s for s in compute)


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_exposed_seconds_are_those_of_the_breakdown(order: str) -> None:
    result = two_stages("stream = s2", order=order)
    parts = dict(breakdown(result))
    first = result.program.classes[critical_class(result)].devices[0]
    actions = [
        s
        for s in simulated_trace(result, plan="two").spans
        if s.device == first and s.kind in ACTIONS
    ]
    wanted = parts["tp"] + parts.get("cp", 0.0) + parts.get("ep", 0.0)
    assert wanted > 0
    # A collective beside an action stretches it and what it waits for; the breakdown has all of
    # that apart.
    exposed = sum(s.exposed_s for s in actions)
    assert wanted * (1 - 1e-6) <= exposed <= (wanted + parts.get("slowdown", 0.0)) * (1 + 1e-6)


@pytest.mark.parametrize("device", [-1, 4, 1000])
def test_a_device_that_runs_nothing(device: int) -> None:
    with pytest.raises(UsageError, match=f"device {device} runs nothing in this plan"):
        simulated_trace(two_stages(), plan="two", devices=(0, device))
