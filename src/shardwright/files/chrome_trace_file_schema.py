"""Schema of a trace file: its headers, and events in Chrome's trace event format."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from shardwright.files.strict_pydantic_models_of_dataclasses import (
    Count,
    FromOne,
    Number,
    Record,
    Signed,
)
from shardwright.files.validation_error_text import require_value
from shardwright.program.step_trace import Origin, Track

SCHEMA: Final = "shardwright.trace"
VERSION: Final = 1
TRACKS: Final = tuple(Track)
THREADS_OF_PROCESS: Final = 16
"""Thread numbers of each process: its own number times these, and a track's number."""
_Place = Annotated[int, Field(ge=-1, lt=2**63)]


class DeviceRecord(Record):
    """A process of the file: a device of a trace."""

    pid: Count
    device: Count
    alike: FromOne
    runs: str


class HeaderRecord(Record):
    """Header of one of the file's traces."""

    plan: str
    origin: Annotated[Origin, Field(strict=False)]
    step_s: Number
    zero_s: Signed
    devices: list[DeviceRecord]


class ArgumentsRecord(Record):
    """Arguments of a span that differ from their defaults."""

    kind: str
    lane: _Place = -1
    chunk: _Place = -1
    microbatch: _Place = -1
    slice: _Place = 0
    within: str = ""
    bytes: Count = 0
    exposed_us: Number = 0.0
    peer: _Place = -1
    target: _Place = -1


class SpanEvent(Record):
    """A complete event: a span."""

    ph: Literal["X"]
    pid: Count
    tid: Annotated[
        int,
        Field(ge=0),
        require_value(
            lambda tid: tid % THREADS_OF_PROCESS < len(TRACKS),
            f"{THREADS_OF_PROCESS} x pid + a number below {len(TRACKS)}",
        ),
    ]
    name: str
    cat: str = ""
    ts: Number
    dur: Number
    args: ArgumentsRecord


class HeldRecord(Record):
    """Bytes that a device holds."""

    bytes: Count


class HeldEvent(Record):
    """A counter: the bytes that a device holds."""

    ph: Literal["C"]
    pid: Count
    tid: Count
    name: str
    ts: Number
    args: HeldRecord


class OtherEvent(Record):
    """Metadata event: the name of a process or a track."""

    model_config = ConfigDict(extra="allow")

    ph: str


def _event_tag(event: Any) -> str:
    """Kind of an event: X (span), C (memory) or other."""
    kind = event.get("ph") if isinstance(event, dict) else None
    return kind if kind in ("X", "C") else "other"


Event = Annotated[
    Annotated[SpanEvent, Tag("X")]
    | Annotated[HeldEvent, Tag("C")]
    | Annotated[OtherEvent, Tag("other")],
    Discriminator(_event_tag),
]


class TraceRecord(Record):
    """The body of a trace file: headers of its traces, and events in Chrome's format."""

    traces: list[HeaderRecord]
    events: list[Event] = Field(alias="traceEvents")


TRACE: Final = TypeAdapter(TraceRecord)
