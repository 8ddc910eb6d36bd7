"""Trace of a step: spans of work and memory of each device, simulated or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass

ACTIONS: Final = ("F", "I", "W", "B", "R")
"""Kinds of span that are actions of the order."""


class Origin(StrEnum):
    """Source of a trace's times: simulated or measured."""

    SIMULATED = "simulated"
    MEASURED = "measured"


class Track(StrEnum):
    """Activities that a device runs side by side; spans of one track do not overlap.

    COMPUTE: actions and the update. SEND_F, SEND_B: messages of a simulated pipeline. SYNC: gathers
    of parameters and sums of gradients. COLLECTIVES, MESSAGES: requests of a measured device to
    other devices, inside an action or a sum; a message is posted or waited for.
    """

    COMPUTE = "compute"
    SEND_F = "send forward"
    SEND_B = "send backward"
    SYNC = "sync"
    COLLECTIVES = "collectives"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time on a track of a device, and the work that fills it.

    Args:
        kind: a letter of `ACTIONS`; ``SEND_F``, ``SEND_B``, ``GATHER``, ``REDUCE``, ``STEP``; of a
            request the words of `Collective`, or ``send`` and ``receive``.
        start_s, end_s: seconds from the trace's zero.
        lane, chunk, microbatch: -1 where it has none.
        within: of a request, the kind of the action around it.
        size: bytes that it moved, 0 where they were not counted.
        exposed_s: seconds of it in which its kernels wait for collectives that are no spans of
            their own.
        peer: device at the other end of a measured message; else -1.
        target: chunk that a simulated message is for; else -1.
    """

    device: int
    track: Track
    kind: str
    start_s: float
    end_s: float
    lane: int = -1
    chunk: int = -1
    microbatch: int = -1
    slice: int = 0
    within: str = ""
    size: int = 0
    exposed_s: float = 0.0
    peer: int = -1
    target: int = -1

    @property
    def action(self) -> tuple[int, str, int, int, int, int]:
        """(device, kind, lane, chunk, microbatch, slice): equal for the pieces of one action."""
        return self.device, self.kind, self.lane, self.chunk, self.microbatch, self.slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Bytes of memory that a device holds from `time_s` on."""

    device: int
    time_s: float
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDevice:
    """A device of a trace, the number of devices that it stands for, and its layers.

    Args:
        alike: devices that it stands for, itself included.
        runs: its layers, in words; empty if unknown.
    """

    device: int
    alike: int = 1
    runs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """Spans and memory samples of one step of a plan.

    Args:
        plan: name.
        devices: sorted.
        spans: by device, track and start.
        memory: by device and time; may be empty.
        step_s: seconds of the step as it is answered; a prediction's has jitter, which no span has.
        zero_s: clock reading of the zero, in seconds; 0 of a simulation.
    """

    plan: str
    origin: Origin
    devices: tuple[TracedDevice, ...]
    spans: tuple[Span, ...]
    step_s: float
    memory: tuple[Sample, ...] = ()
    zero_s: float = 0.0

    @property
    def end_s(self) -> float:
        """End of the last span of the trace, in seconds; 0 without spans."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def actions(self) -> frozenset[tuple[int, str, int, int, int, int]]:
        """Every action (device, kind, lane, chunk, microbatch, slice) that some device runs."""
        return frozenset(span.action for span in self.spans if span.kind in ACTIONS)

    def from_s(self, zero: float) -> StepTrace:
        """The trace with its spans and memory samples `zero` seconds earlier; `zero_s` stays."""
        return replace(
            self,
            spans=tuple(
                replace(s, start_s=s.start_s - zero, end_s=s.end_s - zero) for s in self.spans
            ),
            memory=tuple(replace(m, time_s=m.time_s - zero) for m in self.memory),
        )


def sorted_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Sort spans in the order of a trace: by device, track and start."""
    tracks = {track: number for number, track in enumerate(Track)}
    return tuple(sorted(spans, key=lambda s: (s.device, tracks[s.track], s.start_s, s.end_s)))


def merged_trace(parts: Sequence[StepTrace]) -> StepTrace:
    """Merge the traces of several ranks of one measured step into one trace.

    The zero is the earliest of theirs.

    Clocks of the ranks are taken as they are unless they contradict each other: no device leaves
    the step's last reduction, which all devices run, before the last one enters it. Then each part
    is moved so that its devices leave it together.

    Raises:
        DataError: there is no part, a part is not measured or of another plan, or a device is in
            two of them.
    """
    if not parts or any(part.origin is not Origin.MEASURED for part in parts):
        raise DataError(
            "parts of a measured step are merged"
            if parts
            else "there is no part of a trace to merge"
        )
    plans = sorted({part.plan for part in parts})
    if len(plans) > 1:
        raise DataError(f"parts of the traces of {plans[0]!r} and {plans[1]!r} are not one step")
    numbers = sorted(device.device for part in parts for device in part.devices)
    twice = next((device for device, following in pairwise(numbers) if device == following), None)
    if twice is not None:
        raise DataError(
            f"device {twice} is in two parts of the trace",
            hint="one part of each rank, of the same run",
        )
    zeros = _zeros_on_one_clock(parts)
    zero = min(zeros)
    moved = [part.from_s(zero - at) for part, at in zip(parts, zeros, strict=True)]
    spans = sorted_spans([span for part in moved for span in part.spans])
    return StepTrace(
        plan=plans[0],
        origin=Origin.MEASURED,
        devices=tuple(sorted((d for part in moved for d in part.devices), key=lambda d: d.device)),
        spans=spans,
        step_s=max((span.end_s for span in spans), default=0.0),
        memory=tuple(
            sorted((m for part in moved for m in part.memory), key=lambda m: (m.device, m.time_s))
        ),
        zero_s=zero,
    )


def _zeros_on_one_clock(parts: Sequence[StepTrace]) -> list[float]:
    """Zeros of the ranks' traces; aligned at the last all-reduce's end if clocks contradict it."""
    last_reductions = [
        [s for s in part.spans if s.kind == "all_reduce" and s.within == "STEP"] for part in parts
    ]
    zeros = [part.zero_s for part in parts]
    if not all(last_reductions):
        return zeros
    enter_times = [
        zero + max(s.start_s for s in reductions)
        for zero, reductions in zip(zeros, last_reductions, strict=True)
    ]
    leave_times = [
        zero + min(s.end_s for s in reductions)
        for zero, reductions in zip(zeros, last_reductions, strict=True)
    ]
    if max(enter_times) <= min(leave_times):
        return zeros
    return [zero + leave_times[0] - end for zero, end in zip(zeros, leave_times, strict=True)]
