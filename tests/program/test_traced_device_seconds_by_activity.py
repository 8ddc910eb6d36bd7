"""Where time goes: a device's times add up, waiting inside an action is waiting, and only traces of
one plan are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from shardwright.errors import DataError
from shardwright.program.step_trace import Origin, Sample, StepTrace, Track
from shardwright.program.traced_device_seconds_by_activity import compared_traces, device_times
from tests.program.traces import span, trace, traces
from tests.tiers import examples


@examples(25, 500)
@given(found=traces())
def test_times_tile_the_trace(found: StepTrace) -> None:
    for times in device_times(found):
        assert times.compute_s + times.communication_s + times.waiting_s == pytest.approx(
            found.end_s, rel=1e-9, abs=1e-12
        )
        assert times.waiting_s >= 0
    assert [t.device for t in device_times(found)] == list(found.devices)


def test_what_an_action_asks_is_not_computed() -> None:
    (times,) = device_times(
        trace(
            span(0, 0.0, 10.0),
            span(0, 1.0, 3.0, "receive", track=Track.MESSAGES, within="F"),
            span(0, 4.0, 5.0, "all_gather", track=Track.COLLECTIVES, within="F"),
            span(0, 12.0, 16.0, "REDUCE", track=Track.SYNC),
            span(0, 13.0, 14.0, "all_to_all", track=Track.COLLECTIVES, within="REDUCE"),
            span(0, 16.0, 20.0, "STEP"),
            memory=(Sample(device=0, time_s=1.0, held=7), Sample(device=0, time_s=2.0, held=5)),
        )
    )
    assert (times.compute_s, times.communication_s, times.waiting_s, times.held) == (
        11.0,
        5.0,
        4.0,
        7,
    )


def test_communication_beneath_an_action_costs_nothing_and_exposed_seconds_do() -> None:
    beneath = span(0, 2.0, 6.0, "REDUCE", track=Track.SYNC)
    sent = span(0, 6.0, 8.0, "SEND_F", track=Track.SEND_F)
    (times,) = device_times(
        trace(replace(span(0, 0.0, 5.0), exposed_s=1.5), beneath, sent, origin=Origin.SIMULATED)
    )
    assert (times.compute_s, times.communication_s, times.waiting_s) == (3.5, 2.5, 2.0)


def test_two_traces_of_one_plan() -> None:
    predicted = replace(
        trace(span(0, 0.0, 1.0), span(1, 1.0, 2.0), origin=Origin.SIMULATED), step_s=2.2
    )
    measured = trace(
        span(0, 0.0, 2.0),
        span(1, 0.0, 4.0),
        span(1, 0.0, 2.5, "receive", track=Track.MESSAGES, within="F"),
    )
    found = compared_traces(predicted, measured)
    assert [(a.waiting_s, b.waiting_s) for a, b in found.rows] == [(1.0, 2.0), (1.0, 2.5)]
    assert found.error == pytest.approx(-0.45)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            span(1, 1.0, 2.0, microbatch=3),
            "device 1: F of lane 0 chunk 1 microbatch 3 slice 0 is in one trace",
        ),
        (span(2, 1.0, 2.0), "device 2: F of lane 0 chunk 2"),
        (span(1, 1.0, 2.0, "STEP"), "device 1: F of lane 0 chunk 1 microbatch 0"),
    ],
)
def test_traces_of_two_plans(other: object, says: str) -> None:
    first = span(0, 0.0, 1.0)
    with pytest.raises(DataError, match=says):
        compared_traces(
            trace(first, span(1, 1.0, 2.0), origin=Origin.SIMULATED), trace(first, other)
        )  # type: ignore[arg-type]
