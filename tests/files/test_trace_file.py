"""Trace files: what is written is read again, Perfetto's fields are there, and anything else is
refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.trace_simulated_step import trace as simulated
from shardwright.errors import DataError
from shardwright.files.trace_file import parse_traces, read_measured, read_traces, trace_text
from shardwright.program.step_trace import Origin, Sample, StepTrace, TracedDevice, Track
from shardwright.strategy.text.grid_notation import parse_grid
from tests.files.chrome_trace import faults
from tests.frameworks.plans import stored
from tests.program.traces import span, trace, traces
from tests.tiers import examples

PREDICTED = replace(
    trace(
        replace(span(0, 0.0, 1e-3, microbatch=2), exposed_s=1e-4),
        span(0, 1e-3, 2e-3, "SEND_F", track=Track.SEND_F),
        origin=Origin.SIMULATED,
        memory=(Sample(device=0, time_s=0.0, held=5),),
    ),
    devices=(TracedDevice(device=0, alike=4, runs="embed + 2 layer"),),
)
MEASURED = replace(trace(span(0, 0.0, 3e-3, microbatch=2)), zero_s=1.7e9)
TEXT = trace_text(PREDICTED, MEASURED)


@examples(25, 500)
@given(found=st.lists(traces(), max_size=3))
def test_what_is_written_is_read(found: list[StepTrace]) -> None:
    text = trace_text(*found)
    again = parse_traces(text)
    assert trace_text(*again) == text
    for one, other in zip(found, again, strict=True):
        assert (one.plan, one.origin, one.devices, one.step_s, one.zero_s) == (
            other.plan,
            other.origin,
            other.devices,
            other.step_s,
            other.zero_s,
        )
        assert [replace(s, start_s=0, end_s=0, exposed_s=0) for s in one.spans] == [
            replace(s, start_s=0, end_s=0, exposed_s=0) for s in other.spans
        ]
        for name in ("start_s", "end_s", "exposed_s"):
            assert [getattr(s, name) for s in other.spans] == pytest.approx(
                [getattr(s, name) for s in one.spans], abs=2e-12
            )
        assert [(m.device, m.held) for m in one.memory] == [
            (m.device, m.held) for m in other.memory
        ]


def alternating(lengths: list[int]) -> StepTrace:
    """Two devices in turn, each of whose spans, of so many picoseconds, sends what the other takes
    as it ends."""
    spans, now = [], 0
    for number, length in enumerate(lengths):
        first, end = now / 1e12, (now + length) / 1e12
        spans.append(
            replace(
                span(0, first, end, "send", track=Track.MESSAGES), peer=1, microbatch=number, size=4
            )
        )
        spans.append(
            replace(
                span(1, first, end, "receive", track=Track.MESSAGES),
                peer=0,
                microbatch=number,
                size=4,
            )
        )
        now += length
    return replace(trace(*spans), devices=(TracedDevice(device=0), TracedDevice(device=1)))


@examples(200, 2000)
@given(
    st.lists(
        st.one_of(st.integers(1, 10**7).map(lambda n: 1000 * n), st.integers(0, 10**8)),
        min_size=1,
        max_size=40,
    )
)
def test_spans_that_follow_one_another_overlap_nowhere_as_perfetto_cuts_them_off(
    lengths: list[int],
) -> None:
    """Whole nanoseconds too: 1.005 x 1000 is 1004.9 in double precision."""
    assert faults(trace_text(alternating(lengths))) == []


def test_events_are_those_that_perfetto_shows() -> None:
    document = json.loads(TEXT)
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "simulated · device 0 (+3 alike)", 2: "measured · device 0"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert threads == {(1, 16): "compute", (1, 17): "send forward", (2, 32): "compute"}
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (1, "F 2 chunk 0", 0.0, 1000.0),
        (1, "SEND_F 0 chunk 0", 1000.0, 1000.0),
        (2, "F 2 chunk 0", 0.0, 3000.0),
    ]
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"bytes": 5}]


def test_the_measured_trace_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(TEXT, encoding="utf-8")
    assert read_traces(path) == (PREDICTED, MEASURED)
    assert read_measured(path) == MEASURED
    for kept, says in (
        ((PREDICTED,), "has no measured trace"),
        ((MEASURED, MEASURED), "has 2 measured traces"),
    ):
        path.write_text(trace_text(*kept), encoding="utf-8")
        with pytest.raises(DataError, match=f"trace.json {says}"):
            read_measured(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "cannot read trace .*trace.json: it is not text"),
        (b"[1", "trace.json is not JSON"),
        (b"[" * 100_000, "trace.json is not JSON"),
        (b"[]", "is not a trace of a plan"),
        (b'{"traceEvents": []}', "is not a trace of a plan: its schema is not shardwright.trace"),
        (TEXT.replace('"version": 1', '"version": 2').encode(), "version 2 is not 1"),
        (
            TEXT.replace('"pid": 2, "device"', '"pid": 1, "device"').encode(),
            "process 1, device 0 is there twice",
        ),
        (
            TEXT.replace('"origin": "measured"', '"origin": "guessed"').encode(),
            "origin is 'guessed', not simulated or measured",
        ),
        (
            TEXT.replace('"dur": 3000.0', '"dur": -1').encode(),
            "dur is -1, not a number of at least 0",
        ),
        (TEXT.replace('"dur": 3000.0', '"dur": NaN').encode(), "dur is nan"),
        (
            TEXT.replace('"ph": "X", "pid": 2', '"ph": "X", "pid": 3').encode(),
            "pid is 3, not a process of this file",
        ),
        (
            TEXT.replace('"tid": 17, "name": "SEND_F', '"tid": 9, "name": "SEND_F').encode(),
            "tid is 9, not 16 x pid",
        ),
        (TEXT.replace('"bytes": 5', '"bytes": "5"').encode(), "bytes is '5', not a whole number"),
    ],
)
def test_files_that_are_no_trace(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_traces(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read trace .*none\.json: No such file"):
        read_traces(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot read trace"):
        read_traces(tmp_path)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@examples(25, 500)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    document: Any = json.loads(TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        where = document
        while isinstance(where, dict | list) and where:
            keys = sorted(where) if isinstance(where, dict) else range(len(where))
            key = data.draw(st.sampled_from(list(keys)))
            if (
                not isinstance(where[key], dict | list)
                or not where[key]
                or data.draw(st.integers(0, 3)) == 0
            ):
                if isinstance(where, dict) and data.draw(st.booleans()):
                    del where[key]
                else:
                    where[key] = data.draw(ODD)
                break
            where = where[key]
    with suppress(DataError):
        parse_traces(json.dumps(document))


@examples(25, 500)
@given(text=st.text(max_size=40))
def test_any_text(text: str) -> None:
    with pytest.raises(DataError):
        parse_traces(text)


@pytest.mark.parametrize(
    ("text", "runtime", "arrows"),
    [
        ("tp2 sp pp4 dp2 zero1", "megatron-core", 192),
        ("tp2 sp pp2 vpp2 dp2 zero1 schedule=interleaved-1f1b", "megatron-core", 192),
        ("pp4 vpp2 dp2 schedule=zb-v", "torchtitan", 384),
        ("dp8 zero3", "torchtitan", 0),
    ],
)
def test_simulated_steps_open_in_perfetto(text: str, runtime: str, arrows: int) -> None:
    """Every message of every device is an arrow to the device of the same place: 32 microbatches,
    two ways, over each border of ranks."""
    one = stored(parse_grid(text), runtime=runtime)
    assert one.grid is not None
    found = simulated(one, devices=range(one.grid.devices))
    written = trace_text(found)
    assert faults(written) == []
    events = json.loads(written)["traceEvents"]
    sent = [span for span in found.spans if span.track in (Track.SEND_F, Track.SEND_B)]
    replicas = one.grid.devices // one.grid.pp
    assert len([e for e in events if e["ph"] == "s"]) == len(sent) == arrows * replicas
    devices = {
        e["pid"]: int(e["args"]["name"].rpartition(" ")[2])
        for e in events
        if e["name"] == "process_name"
    }
    ends = {(e["id"], e["ph"]): devices[e["pid"]] for e in events if e["ph"] in ("s", "f")}
    assert all(
        (ends[number, "f"] - device) % replicas == 0
        for (number, phase), device in ends.items()
        if phase == "s"
    )
    assert faults(trace_text(simulated(one), replace(found, origin=Origin.MEASURED))) == []


def test_measured_messages_are_arrows() -> None:
    """Of two requests about the same microbatch in the same direction; not where one of them is
    lacking."""
    asked = [
        replace(span(0, 2.0, 2.1, "send", track=Track.MESSAGES, within="F"), peer=1),
        replace(span(1, 1.0, 2.3, "receive", track=Track.MESSAGES, within="F"), peer=0),
        replace(span(1, 4.0, 4.1, "send", track=Track.MESSAGES, within="B"), peer=0),
    ]
    written = trace_text(trace(*asked))
    assert faults(written) == []
    flows = [
        (e["ph"], e["pid"], e["ts"])
        for e in json.loads(written)["traceEvents"]
        if e["ph"] in ("s", "f")
    ]
    assert flows == [("s", 1, 2.05e6), ("f", 2, 2.05e6)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda e: e["ph"] == "X" and e.update(dur=e["dur"] + 1.0), "overlaps"),
        (lambda e: e["ph"] == "f" and e.update(ts=0.0), "does not lead on"),
        (lambda e: e["ph"] == "f" and e.update(id=10**6), "a flow of"),
        (lambda e: e["name"] == "thread_name" and e.update(name="thread"), "event"),
        (lambda e: e["ph"] == "C" and e.update(args={}), "counter"),
    ],
)
def test_the_check_sees_what_perfetto_would_drop(
    change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    document = json.loads(
        trace_text(simulated(stored(parse_grid("pp2 dp2 zero1"), runtime="megatron-core")))
    )
    for event in document["traceEvents"]:
        change(event)
    assert any(fault in one for one in faults(json.dumps(document)))
