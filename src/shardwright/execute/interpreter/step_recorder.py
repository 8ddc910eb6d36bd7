"""Recorder of the actual compute and communication events of a step, with times and memory.

Device tasks report their actions, and the recorder observes their requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from shardwright.execute.transport.communication_record import record_of_request
from shardwright.execute.transport.communication_requests import (
    Answer,
    Begin,
    End,
    Post,
    Request,
    T,
    Take,
    Task,
    answer_requests,
)
from shardwright.program.step_trace import (
    Origin,
    Sample,
    Span,
    StepTrace,
    TracedDevice,
    Track,
    merged_trace,
    sorted_spans,
)
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind

Tell = Callable[[TaskKind | None, tuple[int, int, int, int]], None]
"""Called with the start of a device's action: its kind and (lane, chunk, microbatch, slice); None:
the device is idle."""

STEP_LEVEL = (-1, -1, -1, 0)
"""The place of an event that belongs to no action of the order."""


def ignore_event(kind: TaskKind | None, place: tuple[int, int, int, int]) -> None:
    """Do nothing: stands for a recorder of actions where none listens."""


class Recorder:
    """Record of the time spans and memory samples of the last step, for all devices of a rank.

    Args:
        clock: monotonic clock, in seconds.
        settle: called before each reading, such as ``torch.cuda.synchronize``, so that kernels are
            counted in the action that launched them; kernels then do not overlap.
        held: returns the bytes allocated on the rank's accelerator, such as
            ``torch.cuda.memory_allocated``; None = not recorded.
        seconds: converts a reading of `clock` to seconds after the step; None = readings are
            seconds.
        restart: called before a step.

    Times are readings of `clock` plus a fixed offset to the computer's time. Times of different
    machines agree as well as their clocks do; `merged_trace` corrects clock offsets that contradict
    the order of events.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        settle: Callable[[], None] | None = None,
        held: Callable[[], int] | None = None,
        seconds: Callable[[float], float] | None = None,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self._clock, self._settle, self._held, self._seconds, self._restart = (
            clock,
            settle,
            held,
            seconds,
            restart,
        )
        self._offset = time.time() - self._reading_to_seconds(clock())
        self._devices: tuple[int, ...] = ()
        self._spans: list[Span] = []
        self._memory: list[Sample] = []
        self._doing: dict[int, tuple[TaskKind, tuple[int, int, int, int], float]] = {}

    def record_tasks(self, tasks: Mapping[int, Task[T]]) -> dict[int, Task[T]]:
        """Wrap a step's tasks, by device, so that all their requests are recorded.

        Earlier records are dropped.
        """
        self.begin(tasks)
        return {device: self._record_task(device, task) for device, task in tasks.items()}

    def begin(self, devices: Iterable[int]) -> None:
        """Forget the earlier records and clock, and begin to record a step of these devices."""
        if self._restart is not None:
            self._restart()
        self._devices = tuple(sorted(devices))
        self._spans, self._memory, self._doing = [], [], {}

    def listens(self, device: int) -> bool:
        """True while the device runs an action that is being recorded."""
        return device in self._doing

    @contextmanager
    def record_request(
        self,
        device: int,
        kind: str,
        *,
        track: Track,
        size: int = 0,
        place: tuple[int, int, int, int] | None = None,
    ) -> Iterator[None]:
        """Context manager that records its duration as a communication span of the device.

        Args:
            kind: the span's kind, such as the name of the collective.
            size: bytes that the request moves.
            place: (lane, chunk, microbatch, slice); None: of the device's current action.
        """
        start = self._now()
        yield
        self._spans.append(
            self._request_span(
                device, kind, track, size=size, place=place, start=start, end=self._now()
            )
        )

    def tell(self, device: int) -> Tell:
        """Function that a device calls at the begin of each action, to record the previous one."""

        def begins(kind: TaskKind | None, place: tuple[int, int, int, int]) -> None:
            """End and record the device's current action, sample memory, and begin the next one."""
            now = self._now()
            previous = self._doing.pop(device, None)
            if previous is not None:
                done, (lane, chunk, microbatch, part), start = previous
                self._spans.append(
                    Span(
                        device=device,
                        track=Track.SYNC
                        if done in (TaskKind.GATHER, TaskKind.REDUCE)
                        else Track.COMPUTE,
                        kind=done.name,
                        start_s=start,
                        end_s=now,
                        lane=lane,
                        chunk=chunk,
                        microbatch=microbatch,
                        slice=part,
                    )
                )
            if self._held is not None:
                self._memory.append(Sample(device=device, time_s=now, held=self._held()))
            if kind is not None:
                self._doing[device] = kind, place, now

        return begins

    def trace(self, *, plan: str) -> StepTrace:
        """The trace of the last step for this rank's devices, with times from the first span on.

        `gather_trace` adds the other ranks' traces.
        """
        spans = [
            replace(
                span,
                start_s=self._reading_to_seconds(span.start_s),
                end_s=self._reading_to_seconds(span.end_s),
            )
            for span in self._spans
        ]
        zero = min((span.start_s for span in spans), default=0.0)
        part = StepTrace(
            plan=plan,
            origin=Origin.MEASURED,
            devices=tuple(TracedDevice(device=device) for device in self._devices),
            spans=sorted_spans(spans),
            step_s=0.0,
            memory=tuple(
                replace(sample, time_s=self._reading_to_seconds(sample.time_s))
                for sample in self._memory
            ),
            zero_s=zero + self._offset,
        )
        return merged_trace([part.from_s(zero)])

    def _reading_to_seconds(self, reading: float) -> float:
        """Seconds of a clock reading (which may be the number of a CUDA event)."""
        return reading if self._seconds is None else self._seconds(reading)

    def _now(self) -> float:
        """Reading of the clock, after waiting for the accelerator's launched work."""
        if self._settle is not None:
            self._settle()
        return self._clock()

    def _record_task(self, device: int, task: Task[T]) -> Task[T]:
        """Wrap a device's task so that each of its requests is recorded as a span."""

        def record_span(request: Request) -> Generator[Request, Answer, Answer]:
            """Pass a request on, and record the time until its answer as a communication span."""
            if isinstance(request, Begin):
                return (yield replace(request, task=self._record_task(device, request.task)))
            if isinstance(request, End):
                return (yield request)
            start = self._now()
            answer = yield request
            end, what = self._now(), record_of_request(device, request)
            track = Track.MESSAGES if isinstance(request, Post | Take) else Track.COLLECTIVES
            size = (what.sent + what.received) * what.element
            peer = (
                request.to
                if isinstance(request, Post)
                else request.source
                if isinstance(request, Take)
                else -1
            )
            self._spans.append(
                self._request_span(
                    device, what.kind, track, size=size, place=None, start=start, end=end, peer=peer
                )
            )
            return answer

        return answer_requests(task, record_span)

    def _request_span(
        self,
        device: int,
        kind: str,
        track: Track,
        *,
        size: int,
        place: tuple[int, int, int, int] | None,
        start: float,
        end: float,
        peer: int = -1,
    ) -> Span:
        """The span of a request, at the place of the device's current action if none is given."""
        within, current_place, _ = self._doing.get(device, (None, STEP_LEVEL, 0.0))
        lane, chunk, microbatch, part = place or current_place
        return Span(
            device=device,
            track=track,
            kind=kind,
            start_s=start,
            end_s=end,
            lane=lane,
            chunk=chunk,
            microbatch=microbatch,
            slice=part,
            within=within.name if within is not None else "",
            size=size,
            peer=peer,
        )


def gather_trace(part: StepTrace | None) -> StepTrace:
    """Merge the traces of all ranks into one; every rank of the process group must call it.

    A rank without devices passes None.

    Raises:
        DataError: as `merged_trace`.
    """
    if not dist.is_available() or not dist.is_initialized():
        return merged_trace([part] if part is not None else [])
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    return merged_trace([rank_part for rank_part in parts if rank_part is not None])
