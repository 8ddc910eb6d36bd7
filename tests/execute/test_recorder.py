"""Measured traces: the actions that are simulated, what was asked inside them, and parts of ranks
whose clocks differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import DataError
from shardwright.execute.interpreter.step_recorder import Recorder, gather_trace
from shardwright.program.step_trace import StepTrace, Track, merged_trace
from tests.execute.small_plans import PLANS, Small
from tests.execute.traces import check_measured
from tests.execute.trained import train

HERE = (
    "1f1b",
    "found order",
    "two lanes",
    "unequal lanes",
    "zero-3",
    "three devices",
    "recomputed early",
)


def recorded(small: Small, recorder: Recorder, *, steps: int = 1) -> StepTrace:
    known = small.known()
    train(small.members(known), known, map(small.batches, range(steps)), recorder=recorder)
    return recorder.trace(plan="small")


@pytest.mark.parametrize("name", HERE)
def test_the_actions_are_those_that_are_simulated(name: str) -> None:
    trace = recorded(PLANS[name], Recorder())
    check_measured(PLANS[name], trace)
    kinds = {s.kind for s in trace.spans if s.track is Track.SYNC}
    assert kinds == ({"GATHER", "REDUCE"} if name == "zero-3" else {"REDUCE"})


def test_only_the_last_step_is_kept() -> None:
    one, two = (recorded(PLANS["order by hand"], Recorder(), steps=steps) for steps in (1, 2))
    assert len(one.spans) == len(two.spans)


def test_a_recorder_changes_nothing() -> None:
    small = PLANS["1f1b"]
    reports = []
    for recorder in (None, Recorder()):
        known = small.known()
        reports.append(
            train(small.members(known), known, map(small.batches, range(2)), recorder=recorder)
        )
    assert reports[0] == reports[1]


def test_the_clock_is_read_once_the_accelerator_is_done_and_memory_is_sampled() -> None:
    ticks, settled, held = count(), count(), count(100)

    def settle() -> None:
        next(settled)

    recorder = Recorder(clock=lambda: float(next(ticks)), settle=settle, held=lambda: next(held))
    trace = recorded(PLANS["order by hand"], recorder)
    assert next(ticks) == next(settled) + 1, "one reading more, at birth"
    assert trace.spans[0].start_s == 0.0
    assert all(s.end_s > s.start_s for s in trace.spans)
    actions = sum(s.track in (Track.COMPUTE, Track.SYNC) for s in trace.spans)
    assert len(trace.memory) == actions + len(trace.devices)
    assert min(m.held for m in trace.memory) == 100


def parts_of(trace: StepTrace) -> list[StepTrace]:
    """Each device a part of its own."""
    return [
        replace(
            trace,
            devices=(device,),
            spans=tuple(s for s in trace.spans if s.device == device.device),
            memory=tuple(m for m in trace.memory if m.device == device.device),
        )
        for device in trace.devices
    ]


def test_parts_become_the_whole() -> None:
    trace = recorded(PLANS["1f1b"], Recorder())
    assert merged_trace(parts_of(trace)) == trace
    assert gather_trace(trace) == trace


def test_clocks_that_contradict_each_other_are_set_by_the_last_reduction() -> None:
    trace = recorded(PLANS["1f1b"], Recorder())
    parts = parts_of(trace)
    wrong = [
        replace(part, zero_s=part.zero_s + 1000.0 * number) for number, part in enumerate(parts)
    ]
    again = merged_trace(wrong)
    ends = {s.end_s for s in again.spans if (s.kind, s.within) == ("all_reduce", "STEP")}
    assert max(ends) - min(ends) < 1e-6
    assert again.step_s < 2 * trace.step_s + 1.0
    assert again.actions == trace.actions


def test_parts_that_are_not_one_step() -> None:
    trace = recorded(PLANS["order by hand"], Recorder())
    one, two = parts_of(trace)
    with pytest.raises(DataError, match="no part"):
        merged_trace([])
    with pytest.raises(DataError, match="device 0 is in two parts"):
        merged_trace([one, two, one])
    with pytest.raises(DataError, match="'other' and 'small' are not one step"):
        merged_trace([one, replace(two, plan="other")])
