"""Trace files: what is written is read again, Perfetto's fields are there, and anything else is refused in one line."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError
from shardwright.files.trace_file import parse_traces, read_measured, read_traces, trace_text
from shardwright.program.step_trace import Origin, Sample, StepTrace, TracedDevice, Track
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
            assert [getattr(s, name) for s in other.spans] == pytest.approx([getattr(s, name) for s in one.spans], abs=2e-12)
        assert [(m.device, m.held) for m in one.memory] == [(m.device, m.held) for m in other.memory]


def test_events_are_those_that_perfetto_shows() -> None:
    document = json.loads(TEXT)
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "simulated · device 0 (+3 alike)", 2: "measured · device 0"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {(1, 0): "compute", (1, 1): "send forward", (2, 0): "compute"}
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
    for kept, says in (((PREDICTED,), "has no measured trace"), ((MEASURED, MEASURED), "has 2 measured traces")):
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
        (TEXT.replace('"pid": 2, "device"', '"pid": 1, "device"').encode(), "process 1, device 0 is there twice"),
        (TEXT.replace('"origin": "measured"', '"origin": "guessed"').encode(), "origin is 'guessed', not simulated or measured"),
        (TEXT.replace('"dur": 3000.0', '"dur": -1').encode(), "dur is -1, not a number of at least 0"),
        (TEXT.replace('"dur": 3000.0', '"dur": NaN').encode(), "dur is nan"),
        (TEXT.replace('"ph": "X", "pid": 2', '"ph": "X", "pid": 3').encode(), "pid is 3, not a process of this file"),
        (TEXT.replace('"tid": 1, "name": "SEND_F', '"tid": 9, "name": "SEND_F').encode(), "tid is 9, not less than 6"),
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
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
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
            if not isinstance(where[key], dict | list) or not where[key] or data.draw(st.integers(0, 3)) == 0:
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
