"""Writer and strict reader of traces in Chrome's trace event format, which Perfetto opens.

A device of a trace is a process, a track a thread, a span a complete event (``X``), memory a
counter (``C``), a message an arrow of two flow events (``s``, ``f``). Times are microseconds to six
digits: picoseconds. Simulated and measured traces of the same devices may share a file;
``otherData`` says what is in it.

Perfetto keeps whole nanoseconds and drops a slice that overlaps the one before on its thread
(google/perfetto#4280): a span's length is the difference of its ends, and what is cut off of either
is less than a nanosecond. Threads 0 and 1 were one to it (thoren-d/tracing-chrome#32), so that each
track has a number of its own.

Source: Trace Event Format,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import inf, nextafter
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from shardwright.errors import DataError
from shardwright.files.canonical_json import parse_json, read_text
from shardwright.files.chrome_trace_file_schema import (
    SCHEMA,
    THREADS_OF_PROCESS,
    TRACE,
    TRACKS,
    VERSION,
    HeaderRecord,
    OtherEvent,
    SpanEvent,
)
from shardwright.files.strict_pydantic_models_of_dataclasses import document_body
from shardwright.files.validation_error_text import document_error
from shardwright.program.step_trace import (
    Origin,
    Sample,
    Span,
    StepTrace,
    TracedDevice,
    Track,
    sorted_spans,
)
from shardwright.program.timeline_message_pairs import Ends, messages
from shardwright.units import MEGA, TERA

MAX_FILE_BYTES: Final = 512 * 1024**2
NANO: Final = 1000
"""Picoseconds of a nanosecond."""
_HELD: Final = "held"
_HINT: Final = "`shardwright trace PLAN -o FILE` writes one"
_WORDS: Final = {"lane": -1, "chunk": -1, "microbatch": -1, "slice": 0, "peer": -1, "target": -1}
_CATEGORIES: Final = {
    Track.COMPUTE: "compute",
    Track.SEND_F: "message",
    Track.SEND_B: "message",
    Track.SYNC: "collective",
    Track.COLLECTIVES: "collective",
    Track.MESSAGES: "message",
}


def trace_text(*traces: StepTrace) -> str:
    """Text of a trace file with these traces; tracks of the same device are neighbours.

    One event a line.
    """
    places = sorted(
        ((d.device, number, d) for number, trace in enumerate(traces) for d in trace.devices),
        key=lambda p: p[:2],
    )
    processes = {(number, device): pid for pid, (device, number, _) in enumerate(places, start=1)}
    headers = [
        {
            "plan": trace.plan,
            "origin": trace.origin.value,
            "step_s": trace.step_s,
            "zero_s": trace.zero_s,
            "devices": [
                {
                    "pid": processes[number, d.device],
                    "device": d.device,
                    "alike": d.alike,
                    "runs": d.runs,
                }
                for d in trace.devices
            ],
        }
        for number, trace in enumerate(traces)
    ]
    events = [
        event
        for device, number, traced in places
        for event in _device_events(traces[number], traced, pid=processes[number, device])
    ]
    arrows = [(number, ends) for number, trace in enumerate(traces) for ends in messages(trace)]
    events += [
        event
        for one, (number, ends) in enumerate(arrows, start=1)
        for event in _flow_events(ends, number, processes, identity=one)
    ]
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    other = json.dumps(
        {"schema": SCHEMA, "version": VERSION, "traces": headers},
        ensure_ascii=False,
        allow_nan=False,
    )
    return f'{{"displayTimeUnit": "ms",\n"otherData": {other},\n"traceEvents": [\n{lines}\n]}}\n'


def _device_events(trace: StepTrace, device: TracedDevice, *, pid: int) -> Iterator[dict[str, Any]]:
    """Yield the trace events of one device as process `pid`: names, spans and memory samples."""
    spans = [span for span in trace.spans if span.device == device.device]
    more = f" (+{device.alike - 1:,} alike)" if device.alike > 1 else ""
    yield _metadata_event(
        pid, 0, "process_name", name=f"{trace.origin.value} · device {device.device}{more}"
    )
    yield _metadata_event(pid, 0, "process_sort_index", sort_index=pid)
    if device.runs:
        yield _metadata_event(pid, 0, "process_labels", labels=device.runs)
    for track in sorted({span.track for span in spans}, key=TRACKS.index):
        yield _metadata_event(pid, _thread_number(pid, track), "thread_name", name=track.value)
        yield _metadata_event(
            pid, _thread_number(pid, track), "thread_sort_index", sort_index=TRACKS.index(track)
        )
    for span in spans:
        start, end = _picoseconds(span.start_s), _picoseconds(span.end_s)
        yield {
            "ph": "X",
            "pid": pid,
            "tid": _thread_number(pid, span.track),
            "name": _span_name(span),
            "cat": _CATEGORIES[span.track],
            "ts": _microseconds(start),
            "dur": _microseconds(max(end - start, 0)),
            "args": dict(_span_arguments(span)),
        }
    for sample in trace.memory:
        if sample.device == device.device:
            yield {
                "ph": "C",
                "pid": pid,
                "tid": _thread_number(pid, Track.COMPUTE),
                "name": _HELD,
                "ts": _microseconds(_picoseconds(sample.time_s)),
                "args": {"bytes": sample.held},
            }


def _thread_number(pid: int, track: Track) -> int:
    """Thread number of a track: pid times `THREADS_OF_PROCESS`, plus the track's index."""
    return pid * THREADS_OF_PROCESS + TRACKS.index(track)


def _flow_events(
    ends: Ends, trace: int, processes: Mapping[tuple[int, int], int], *, identity: int
) -> Iterator[dict[str, Any]]:
    """Yield the two flow events of an arrow between two spans; none if it would go back in time.

    The arrow ends earlier where the message arrives later than the receiving span begins.
    """
    sent, met = ends
    (first, until), (start, stop) = (
        [_picoseconds(at) for at in (span.start_s, span.end_s)] for span in ends
    )
    # Perfetto cuts off of a start and of a length, and an arrow has to end in what it shows of a
    # span.
    last = start // NANO * NANO + (stop - start) // NANO * NANO
    begin = (first + until) // 2
    end = min(max((start + stop) // 2, begin), max(last, start))
    if end < begin:
        if end + NANO < begin or end < first:  # clocks of two machines
            return
        begin = end
    for phase, span, time, more in (("s", sent, begin, {}), ("f", met, end, {"bp": "e"})):
        pid = processes[trace, span.device]
        place = {"pid": pid, "tid": _thread_number(pid, span.track)}
        yield {
            "ph": phase,
            **place,
            "name": "message",
            "cat": "message",
            "id": identity,
            "ts": _microseconds(time),
            **more,
        }


def _metadata_event(pid: int, tid: int, what: str, **arguments: str | int) -> dict[str, Any]:
    """Metadata event that names or sorts a process or thread."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": arguments}


def _picoseconds(seconds: float) -> int:
    """Seconds as whole picoseconds."""
    return round(seconds * TERA)


def _microseconds(picoseconds: int) -> float:
    """Microseconds of whole picoseconds, rounded so that Perfetto shows the right nanosecond.

    Perfetto multiplies by 1000 and cuts off: 1.005 would have 1004.
    """
    value = picoseconds / MEGA
    while int(value * 1000) < picoseconds // NANO:
        value = nextafter(value, inf)
    return value


def _span_name(span: Span) -> str:
    """Name of a span's event from kind, microbatch and chunk, such as ``F 3 chunk 1``.

    Perfetto gives names that differ only in numbers one colour.
    """
    if span.microbatch < 0:
        return span.kind if span.chunk < 0 else f"{span.kind} chunk {span.chunk}"
    lane = f" lane {span.lane}" if span.lane > 0 else ""
    part = f" slice {span.slice}" if span.slice else ""
    return f"{span.kind} {span.microbatch} chunk {span.chunk}{lane}{part}"


def _span_arguments(span: Span) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of a span's kind, and of its arguments that differ from defaults."""
    yield "kind", span.kind
    for name, usual in _WORDS.items():
        value = getattr(span, name)
        if value != usual:
            yield name, value
    if span.within:
        yield "within", span.within
    if span.size:
        yield "bytes", span.size
    if span.exposed_s:
        yield "exposed_us", _microseconds(_picoseconds(span.exposed_s))


def read_traces(path: Path) -> tuple[StepTrace, ...]:
    """Read all traces of a file.

    Raises:
        DataError: the file cannot be read, or is not of the form of `trace_text`.
    """
    return parse_traces(
        read_text(path, what="trace", hint=_HINT, most=MAX_FILE_BYTES), name=str(path)
    )


def read_measured(path: Path) -> StepTrace:
    """Read the one measured trace of a file.

    Raises:
        DataError: as `read_traces`; or the file has none, or several.
    """
    found = [trace for trace in read_traces(path) if trace.origin is Origin.MEASURED]
    if len(found) != 1:
        raise DataError(
            f"{path} has {len(found)} measured traces"
            if found
            else f"{path} has no measured trace",
            hint="a run of the plan writes one",
        )
    return found[0]


def parse_traces(text: str, *, name: str = "trace") -> tuple[StepTrace, ...]:
    """Parse the traces of a file's text; `name` is for messages."""
    document = parse_json(text, name=name, hint=_HINT)
    other = document.get("otherData") if isinstance(document, dict) else None
    body = document_body(
        other, schema=SCHEMA, version=VERSION, name=name, what="trace of a plan", hint=_HINT
    )
    assert isinstance(document, dict)
    body["traceEvents"] = document.get("traceEvents")
    try:
        found = TRACE.validate_python(body)
    except ValidationError as error:
        raise document_error(error, body, TRACE.json_schema(), name=name, hint=_HINT) from None
    places = _process_devices(found.traces, name=name)
    spans: list[list[Span]] = [[] for _ in found.traces]
    memory: list[list[Sample]] = [[] for _ in found.traces]
    for number, event in enumerate(found.events):
        if isinstance(event, OtherEvent):
            continue
        if event.pid not in places:
            raise DataError(
                f"{name}: traceEvents {number}: pid is {event.pid}, not a process of this file",
                hint=_HINT,
            )
        trace, device = places[event.pid]
        if isinstance(event, SpanEvent):
            spans[trace].append(_span_of_event(event, device=device))
        else:
            memory[trace].append(
                Sample(device=device, time_s=event.ts / MEGA, held=event.args.bytes)
            )
    return tuple(
        StepTrace(
            plan=header.plan,
            origin=header.origin,
            devices=tuple(
                TracedDevice(device=d.device, alike=d.alike, runs=d.runs) for d in header.devices
            ),
            spans=sorted_spans(spans[number]),
            step_s=header.step_s,
            memory=tuple(memory[number]),
            zero_s=header.zero_s,
        )
        for number, header in enumerate(found.traces)
    )


def _process_devices(headers: list[HeaderRecord], *, name: str) -> dict[int, tuple[int, int]]:
    """Process (pid) -> (number of the trace, device); DataError where one occurs twice."""
    places: dict[int, tuple[int, int]] = {}
    for number, header in enumerate(headers):
        for device in header.devices:
            place = number, device.device
            if device.pid in places or place in places.values():
                raise DataError(
                    f"{name}: process {device.pid}, device {device.device} is there twice",
                    hint=_HINT,
                )
            places[device.pid] = place
    return places


def _span_of_event(event: SpanEvent, *, device: int) -> Span:
    """Span of a trace file's event on a device, microseconds converted to seconds."""
    said = event.args
    return Span(
        device=device,
        track=TRACKS[event.tid % THREADS_OF_PROCESS],
        kind=said.kind,
        start_s=event.ts / MEGA,
        end_s=(event.ts + event.dur) / MEGA,
        within=said.within,
        size=said.bytes,
        exposed_s=said.exposed_us / MEGA,
        lane=said.lane,
        chunk=said.chunk,
        microbatch=said.microbatch,
        slice=said.slice,
        peer=said.peer,
        target=said.target,
    )
