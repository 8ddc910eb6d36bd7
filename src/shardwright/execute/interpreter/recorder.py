"""Recorder of actual events and their times in a step, from the reports of device tasks and from
their requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from shardwright.execute.transport.communication_record import moved
from shardwright.execute.transport.requests import (
    Answer,
    Begin,
    End,
    Post,
    Request,
    T,
    Take,
    Task,
    answered,
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
from shardwright.program.task_arrays import TaskKind

Tell = Callable[[TaskKind | None, tuple[int, int, int, int]], None]
"""Told what a device begins: its kind and (lane, chunk, microbatch, slice); None: nothing more."""

STEP_LEVEL = (-1, -1, -1, 0)
"""The place of what is no action of the order."""


def silent(kind: TaskKind | None, place: tuple[int, int, int, int]) -> None:
    """Nobody listens."""


class Recorder:
    """Spans of the last step that its devices took.

    Args:
        clock: seconds that only grow. settle: called before each reading, such as
            ``torch.cuda.synchronize``, so that an accelerator's work counts where it was asked for;
            overlap of kernels is lost by that. held: bytes that the rank's accelerator holds now,
            such as ``torch.cuda.memory_allocated``; None = not known. seconds: of a reading of a
            `clock` that gives none, asked once the step is over. restart: called before a step.

    Times are by `clock`, set once by the computer's time: ranks of one machine agree as well as its
    clock is read, machines as well as theirs are kept together; `merged` takes out what contradicts
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
        self._offset = time.time() - self._read(clock())
        self._devices: tuple[int, ...] = ()
        self._spans: list[Span] = []
        self._memory: list[Sample] = []
        self._doing: dict[int, tuple[TaskKind, tuple[int, int, int, int], float]] = {}

    def watched(self, tasks: Mapping[int, Task[T]]) -> dict[int, Task[T]]:
        """The same tasks of a step, by device, and what they ask is recorded; what was recorded
        before is forgotten.
        """
        self.begin(tasks)
        return {device: self._watched(device, task) for device, task in tasks.items()}

    def begin(self, devices: Iterable[int]) -> None:
        """A step of these devices begins; what was recorded before is forgotten."""
        if self._restart is not None:
            self._restart()
        self._devices = tuple(sorted(devices))
        self._spans, self._memory, self._doing = [], [], {}

    def listens(self, device: int) -> bool:
        """True if a device is doing something."""
        return device in self._doing

    @contextmanager
    def asking(
        self,
        device: int,
        kind: str,
        *,
        track: Track,
        size: int = 0,
        place: tuple[int, int, int, int] | None = None,
    ) -> Iterator[None]:
        """Record that the code inside makes a request of other devices, which is answered at the
        end.

        Args:
            kind: as a span has it.
            size: bytes that it moves.
            place: (lane, chunk, microbatch, slice); None: of what the device is doing.
        """
        start = self._now()
        yield
        self._spans.append(
            self._asked(device, kind, track, size=size, place=place, start=start, end=self._now())
        )

    def tell(self, device: int) -> Tell:
        """The function that the task of `device` calls when it begins something."""

        def begins(kind: TaskKind | None, place: tuple[int, int, int, int]) -> None:
            now = self._now()
            before = self._doing.pop(device, None)
            if before is not None:
                done, (lane, chunk, microbatch, part), start = before
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
        """The last step of this rank's devices, from its first span on; see `collected` for the
        other ranks' too.
        """
        spans = [
            replace(span, start_s=self._read(span.start_s), end_s=self._read(span.end_s))
            for span in self._spans
        ]
        zero = min((span.start_s for span in spans), default=0.0)
        part = StepTrace(
            plan=plan,
            origin=Origin.MEASURED,
            devices=tuple(TracedDevice(device=device) for device in self._devices),
            spans=sorted_spans(spans),
            step_s=0.0,
            memory=tuple(replace(one, time_s=self._read(one.time_s)) for one in self._memory),
            zero_s=zero + self._offset,
        )
        return merged_trace([part.from_s(zero)])

    def _read(self, reading: float) -> float:
        return reading if self._seconds is None else self._seconds(reading)

    def _now(self) -> float:
        if self._settle is not None:
            self._settle()
        return self._clock()

    def _watched(self, device: int, task: Task[T]) -> Task[T]:
        def by(request: Request) -> Generator[Request, Answer, Answer]:
            if isinstance(request, Begin):
                return (yield replace(request, task=self._watched(device, request.task)))
            if isinstance(request, End):
                return (yield request)
            start = self._now()
            answer = yield request
            end, what = self._now(), moved(device, request)
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
                self._asked(
                    device, what.kind, track, size=size, place=None, start=start, end=end, peer=peer
                )
            )
            return answer

        return answered(task, by)

    def _asked(
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
        within, own, _ = self._doing.get(device, (None, STEP_LEVEL, 0.0))
        lane, chunk, microbatch, part = place or own
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


def collected(part: StepTrace | None) -> StepTrace:
    """The parts of all ranks as one trace. All ranks of the process group call it; a rank without
    devices gives None.

    Raises:
        DataError: as `merged`.
    """
    if not dist.is_available() or not dist.is_initialized():
        return merged_trace([part] if part is not None else [])
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, part)
    return merged_trace([one for one in found if one is not None])
