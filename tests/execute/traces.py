"""What every measured trace of a small plan has to be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright.files.trace_file import trace_text
from shardwright.program.step_trace import Origin, StepTrace, Track
from shardwright.program.timeline_message_pairs import messages
from shardwright.program.traced_device_seconds_by_activity import ComparedTraces, compared_traces
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.strategy.plan.plan import Plan
from tests.execute.small_plans import TOKENS, Small
from tests.files.chrome_trace import faults
from tests.simulator.general import problem_for

EARLY = 1e-9
"""Seconds that times, counted from another zero, are off by rounding."""


def check_measured(small: Small, trace: StepTrace, *, plan: Plan | None = None) -> ComparedTraces:
    """It has the actions of the simulated step, each device one thing at a time on a track, and
    what is sent is taken."""
    problem = replace(problem_for(small.model, batch=small.batch, seq_len=TOKENS), job=small.job)
    predicted = simulated_trace(
        simulate_plan(problem, plan or small.plan),
        plan=trace.plan,
        devices=[d.device for d in trace.devices],
    )
    found = compared_traces(predicted, trace)
    assert trace.origin is Origin.MEASURED
    assert min(s.start_s for s in trace.spans) == 0.0
    assert trace.step_s == trace.end_s
    actions = [s for s in trace.spans if s.within == "" and s.kind in "FIWBR"]
    assert len(actions) == len(trace.actions), "each action ran once"
    for one, two in pairwise(trace.spans):
        if (one.device, one.track) == (two.device, two.track):
            assert one.end_s <= two.start_s + EARLY
    for rows in found.rows:
        for times, whole in zip(rows, (predicted.end_s, trace.end_s), strict=True):
            assert times.compute_s + times.communication_s + times.waiting_s == pytest.approx(
                whole, rel=1e-9
            )
            assert times.compute_s > 0
    asked = [s for s in trace.spans if s.track is Track.MESSAGES]
    assert {s.kind for s in asked} <= {"send", "receive"}
    ends = list(messages(trace))
    # PyTorch's engine does not say who is at the other end.
    assert 2 * len(ends) == sum(s.peer >= 0 for s in asked), "each is received"
    assert all(
        (one.size, one.peer, one.device) == (other.size, other.device, other.peer)
        for one, other in ends
    )
    assert faults(trace_text(trace)) == []
    return found
