"""Events of a step on PyTorch's own engine, reported to a recorder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any

import torch

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.execute.interpreter.recorder import Recorder, Tell, silent
from shardwright.execute.native.torch_private import (
    around_actions,
    around_shards,
    around_wait,
    is_sharded,
    message_size,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.program.step_trace import ACTIONS, Track
from shardwright.program.task_arrays import TaskKind
from shardwright.units import MILLI

SYNC = {"UNSHARD": TaskKind.GATHER, "REDUCE_GRAD": TaskKind.REDUCE}
"""What the runtime does about shards, as a trace has it."""
SENDS, RECEIVES = ("SEND_F", "SEND_B"), ("RECV_F", "RECV_B")


@dataclass(frozen=True, slots=True)
class Listener:
    """Reports of a rank: `tell` for events that begin, `asking` for requests to other ranks (see
    `Recorder`).
    """

    tell: Tell
    asking: Callable[..., AbstractContextManager[None]]


def _nothing(*asked: object, **more: object) -> AbstractContextManager[None]:
    return nullcontext()


NOBODY = Listener(silent, _nothing)


def listening(recorder: Recorder | None, *, device: int) -> Listener:
    """The listener of `device` for a step that begins now."""
    if recorder is None:
        return NOBODY
    recorder.begin((device,))
    return Listener(recorder.tell(device), partial(recorder.asking, device))


def tell_actions(runtime: Any, listener: Listener) -> None:
    """In its next step a pipeline tells every action as it begins, and what it waits for."""
    if listener is not NOBODY:
        around_actions(runtime, partial(_told, runtime, listener))


@contextmanager
def _told(
    runtime: Any, listener: Listener, word: str, chunk: int, microbatch: int
) -> Iterator[None]:
    place = (0, chunk, microbatch, 0)
    if word in SENDS:
        with listener.asking(
            "send", track=Track.MESSAGES, size=message_size(runtime, word, chunk), place=place
        ):
            yield
    elif word in ACTIONS or (word in SYNC and is_sharded(runtime, chunk)):
        listener.tell(TaskKind[word] if word in ACTIONS else SYNC[word], place)
        yield
        listener.tell(None, place)
    else:
        yield
    if word in RECEIVES:
        size = message_size(runtime, word, chunk)
        around_wait(
            runtime,
            word,
            chunk,
            microbatch,
            partial(listener.asking, "receive", track=Track.MESSAGES, size=size),
        )


def tell_shards(stages: Iterable[torch.nn.Module], recorder: Recorder, *, device: int) -> None:
    """From now on FSDP2 tells what it asks of others inside what a step tells."""

    def around(kind: Collective) -> AbstractContextManager[None]:
        return (
            recorder.asking(device, kind, track=Track.COLLECTIVES)
            if recorder.listens(device)
            else nullcontext()
        )

    for stage in stages:
        around_shards(stage, around)


@dataclass(slots=True)
class Events:
    """A clock of an accelerator's stream: a reading is the number of an event, which the stream
    reaches when what was asked before is done.

    Args:
        event: makes one.
        settle: waits for all of them.
        clock: seconds of the host.
    """

    event: Callable[[], Any]
    settle: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter
    marks: list[Any] = field(default_factory=list)
    begun: float = 0.0

    def restart(self) -> None:
        """Forget all events, and set the clock by the host's: events know short times alone."""
        self.marks = []
        self.settle()
        self.read()
        self.settle()
        self.begun = self.clock()

    def read(self) -> float:
        """The number of an event that is asked for now."""
        mark = self.event()
        mark.record()
        self.marks.append(mark)
        return float(len(self.marks) - 1)

    def seconds(self, reading: float) -> float:
        """When the stream reached an event."""
        self.settle()
        return self.begun + float(self.marks[0].elapsed_time(self.marks[int(reading)])) * MILLI


def native_recorder(on: torch.device) -> Recorder:
    """Of a CPU by its clock; of a GPU by events of its stream,
    so that kernels overlap as without.
    """
    if on.type != "cuda":
        return Recorder()
    events = Events(partial(torch.cuda.Event, enable_timing=True), torch.cuda.synchronize)
    events.restart()
    return Recorder(
        clock=events.read,
        seconds=events.seconds,
        restart=events.restart,
        held=torch.cuda.memory_allocated,
    )
