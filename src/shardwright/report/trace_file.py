"""Traces as files in Chrome's trace event format, which Perfetto opens; and read again, strictly.

A device of a trace is a process, a track a thread, a span a complete event (``X``), memory a counter (``C``). Times are microseconds to
six digits: picoseconds. Simulated and measured traces of the same devices may share a file; ``otherData`` says what is in it.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.program.step_trace import Origin, Sample, Span, StepTrace, TracedDevice, Track, sorted_spans
from shardwright.report.fields import Fields, shown
from shardwright.units import MEGA

SCHEMA: Final = "shardwright.trace"
VERSION: Final = 1
MAX_FILE_BYTES: Final = 512 * 1024**2
DIGITS: Final = 6
_TRACKS: Final = tuple(Track)
_HELD: Final = "held"
_HINT: Final = "`shardwright trace PLAN -o FILE` writes one"
_WORDS: Final = {"lane": -1, "chunk": -1, "microbatch": -1, "slice": 0}


def trace_text(*traces: StepTrace) -> str:
    """The file of these traces: what the same device does in each stands together. One event a line."""
    places = sorted(((d.device, number, d) for number, trace in enumerate(traces) for d in trace.devices), key=lambda p: p[:2])
    processes = {(number, device): pid for pid, (device, number, _) in enumerate(places, start=1)}
    headers = [
        {
            "plan": trace.plan,
            "origin": trace.origin.value,
            "step_s": trace.step_s,
            "zero_s": trace.zero_s,
            "devices": [{"pid": processes[number, d.device], "device": d.device, "alike": d.alike, "runs": d.runs} for d in trace.devices],
        }
        for number, trace in enumerate(traces)
    ]
    events = [event for device, number, traced in places for event in _events(traces[number], traced, pid=processes[number, device])]
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    other = json.dumps({"schema": SCHEMA, "version": VERSION, "traces": headers}, ensure_ascii=False, allow_nan=False)
    return f'{{"displayTimeUnit": "ms",\n"otherData": {other},\n"traceEvents": [\n{lines}\n]}}\n'


def _events(trace: StepTrace, device: TracedDevice, *, pid: int) -> Iterator[dict[str, Any]]:
    spans = [span for span in trace.spans if span.device == device.device]
    more = f" (+{device.alike - 1:,} alike)" if device.alike > 1 else ""
    yield _named(pid, 0, "process_name", name=f"{trace.origin.value} · device {device.device}{more}")
    yield _named(pid, 0, "process_sort_index", sort_index=pid)
    if device.runs:
        yield _named(pid, 0, "process_labels", labels=device.runs)
    for track in sorted({span.track for span in spans}, key=_TRACKS.index):
        yield _named(pid, _TRACKS.index(track), "thread_name", name=track.value)
        yield _named(pid, _TRACKS.index(track), "thread_sort_index", sort_index=_TRACKS.index(track))
    for span in spans:
        yield {
            "ph": "X",
            "pid": pid,
            "tid": _TRACKS.index(span.track),
            "name": _name(span),
            "ts": _micro(span.start_s),
            "dur": _micro(span.end_s - span.start_s),
            "args": dict(_arguments(span)),
        }
    for sample in trace.memory:
        if sample.device == device.device:
            yield {"ph": "C", "pid": pid, "tid": 0, "name": _HELD, "ts": _micro(sample.time_s), "args": {"bytes": sample.held}}


def _named(pid: int, tid: int, what: str, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": arguments}


def _micro(seconds: float) -> float:
    return round(seconds * MEGA, DIGITS)


def _name(span: Span) -> str:
    """``F 3 chunk 1``: Perfetto gives names that differ only in numbers one colour."""
    if span.microbatch < 0:
        return span.kind if span.chunk < 0 else f"{span.kind} chunk {span.chunk}"
    lane = f" lane {span.lane}" if span.lane > 0 else ""
    part = f" slice {span.slice}" if span.slice else ""
    return f"{span.kind} {span.microbatch} chunk {span.chunk}{lane}{part}"


def _arguments(span: Span) -> Iterator[tuple[str, Any]]:
    """What is not as it is for most."""
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
        yield "exposed_us", _micro(span.exposed_s)


def read_traces(path: Path) -> tuple[StepTrace, ...]:
    """The traces that are in a file.

    Raises:
        DataError: it cannot be read, or is not what `trace_text` writes.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"trace {path} is larger than {MAX_FILE_BYTES} bytes", hint="trace fewer devices")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(f"cannot read trace {path}: {reason}", hint=_HINT) from error
    return parse_traces(text, name=str(path))


def read_measured(path: Path) -> StepTrace:
    """The measured trace of a file.

    Raises:
        DataError: as `read_traces`; or it has none, or several.
    """
    found = [trace for trace in read_traces(path) if trace.origin is Origin.MEASURED]
    if len(found) != 1:
        raise DataError(
            f"{path} has {len(found)} measured traces" if found else f"{path} has no measured trace",
            hint="a run of the plan writes one",
        )
    return found[0]


def parse_traces(text: str, *, name: str = "trace") -> tuple[StepTrace, ...]:
    """The same of a text; `name` is for messages."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{name} is not JSON{where}", hint=_HINT) from None
    other = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(other, dict) or other.get("schema") != SCHEMA:
        raise DataError(f"{name} is not a trace of a plan: its schema is not {SCHEMA}", hint=_HINT)
    if other.get("version") != VERSION:
        raise DataError(f"{name}: version {shown(other.get('version'))} is not {VERSION}", hint="use the release that wrote it")
    headers = Fields(other, path=name, hint=_HINT).sections("traces")
    places = _places(headers, name=name)
    spans: list[list[Span]] = [[] for _ in headers]
    memory: list[list[Sample]] = [[] for _ in headers]
    for event in Fields(document, path=name, hint=_HINT).sections("traceEvents"):
        kind = event.text("ph")
        if kind not in ("X", "C"):
            continue
        pid = event.integer("pid")
        if pid not in places:
            raise event.wrong("pid", "a process of this file", pid)
        number, device = places[pid]
        if kind == "X":
            spans[number].append(_span(event, device=device))
        else:
            held = event.section("args").integer("bytes")
            memory[number].append(Sample(device=device, time_s=event.number("ts") / MEGA, held=held))
    return tuple(
        StepTrace(
            plan=header.text("plan"),
            origin=_origin(header),
            devices=tuple(
                TracedDevice(device=d.integer("device"), alike=d.integer("alike", smallest=1), runs=d.text("runs"))
                for d in header.sections("devices")
            ),
            spans=sorted_spans(spans[number]),
            step_s=header.number("step_s"),
            memory=tuple(memory[number]),
            zero_s=header.number("zero_s", signed=True),
        )
        for number, header in enumerate(headers)
    )


def _places(headers: Sequence[Fields], *, name: str) -> Mapping[int, tuple[int, int]]:
    """(number of the trace, device) of each process."""
    places: dict[int, tuple[int, int]] = {}
    known: set[tuple[int, int]] = set()
    for number, header in enumerate(headers):
        for device in header.sections("devices"):
            pid, place = device.integer("pid"), (number, device.integer("device"))
            if pid in places or place in known:
                raise DataError(f"{name}: process {pid}, device {place[1]} is there twice", hint=_HINT)
            places[pid] = place
            known.add(place)
    return places


def _span(event: Fields, *, device: int) -> Span:
    tid, arguments = event.integer("tid"), event.section("args")
    if tid >= len(_TRACKS):
        raise event.wrong("tid", f"less than {len(_TRACKS)}", tid)
    start, length = event.number("ts"), event.number("dur")
    given = arguments.names
    return Span(
        device=device,
        track=_TRACKS[tid],
        kind=arguments.text("kind"),
        start_s=start / MEGA,
        end_s=(start + length) / MEGA,
        within=arguments.text("within") if "within" in given else "",
        size=arguments.integer("bytes") if "bytes" in given else 0,
        exposed_s=arguments.number("exposed_us") / MEGA if "exposed_us" in given else 0.0,
        **{word: arguments.integer(word, smallest=-1) if word in given else usual for word, usual in _WORDS.items()},
    )


def _origin(header: Fields) -> Origin:
    text = header.text("origin")
    if text not in set(Origin):
        raise header.wrong("origin", " or ".join(Origin), text)
    return Origin(text)
