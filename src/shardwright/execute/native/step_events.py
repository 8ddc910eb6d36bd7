"""Events of a step on PyTorch's own engine, reported to a recorder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any

import torch

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.execute.interpreter.step_recorder import Recorder, Tell, ignore_event
from shardwright.execute.native.private_torch_api import (
    is_sharded,
    message_size,
    wrap_actions,
    wrap_receive_wait,
    wrap_shard_waits,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.step_trace import ACTIONS, Track
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.units import MILLI

SYNC = {"UNSHARD": TaskKind.GATHER, "REDUCE_GRAD": TaskKind.REDUCE}
"""Task kinds of the pipeline runtime's actions on shards."""
SENDS, RECEIVES = ("SEND_F", "SEND_B"), ("RECV_F", "RECV_B")


@dataclass(frozen=True, slots=True)
class Listener:
    """Functions of a rank that record its actions and its communication.

    `tell` for actions, `record_request` for communication; see `Recorder`.
    """

    tell: Tell
    record_request: Callable[..., AbstractContextManager[None]]


def _record_nothing(*asked: object, **more: object) -> AbstractContextManager[None]:
    """Context manager without effect, in place of `Recorder.record_request`."""
    return nullcontext()


NO_LISTENER = Listener(ignore_event, _record_nothing)


def listener_of_step(recorder: Recorder | None, *, device: int) -> Listener:
    """Begin a recorded step of `device`, and return its listener; one without effect for None.

    One that records nothing without a recorder.
    """
    if recorder is None:
        return NO_LISTENER
    recorder.begin((device,))
    return Listener(recorder.tell(device), partial(recorder.record_request, device))


def record_actions(runtime: Any, listener: Listener) -> None:
    """Make the pipeline's next step report its actions, sends and receives to the listener."""
    if listener is not NO_LISTENER:
        wrap_actions(runtime, partial(_record_action, runtime, listener))


@contextmanager
def _record_action(
    runtime: Any, listener: Listener, word: str, chunk: int, microbatch: int
) -> Iterator[None]:
    """Context in which one action (compute, gather, reduce, send) of a pipeline is recorded."""
    place = (0, chunk, microbatch, 0)
    if word in SENDS:
        with listener.record_request(
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
        wrap_receive_wait(
            runtime,
            word,
            chunk,
            microbatch,
            partial(listener.record_request, "receive", track=Track.MESSAGES, size=size),
        )


def record_shard_collectives(
    stages: Iterable[torch.nn.Module], recorder: Recorder, *, device: int
) -> None:
    """Make FSDP2 report its collectives to the recorder while a device's action runs."""

    def around(kind: Collective) -> AbstractContextManager[None]:
        """Context that records an FSDP2 collective, if the device's action is being recorded."""
        return (
            recorder.record_request(device, kind, track=Track.COLLECTIVES)
            if recorder.listens(device)
            else nullcontext()
        )

    for stage in stages:
        wrap_shard_waits(stage, around)


@dataclass(slots=True)
class StreamClock:
    """Clock of an accelerator's stream, whose readings are numbers of recorded events.

    The stream reaches an event when all earlier work is done.

    Args:
        event: creates an event.
        settle: waits for all events.
        clock: the host's clock, in seconds.
    """

    event: Callable[[], Any]
    settle: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter
    marks: list[Any] = field(default_factory=list)
    begun: float = 0.0

    def restart(self) -> None:
        """Drop all events, and begin at the host's time with the stream idle.

        Events measure only short intervals well.
        """
        self.marks = []
        self.settle()
        self.read()
        self.settle()
        self.begun = self.clock()

    def read(self) -> float:
        """Record a CUDA event on the stream; return its number as the clock's reading."""
        mark = self.event()
        mark.record()
        self.marks.append(mark)
        return float(len(self.marks) - 1)

    def seconds(self, reading: float) -> float:
        """Seconds on the host's clock at which the stream reached event number `reading`."""
        self.settle()
        return self.begun + float(self.marks[0].elapsed_time(self.marks[int(reading)])) * MILLI


def native_recorder(on: torch.device) -> Recorder:
    """Create a recorder: with a CPU's clock, or with events of a GPU's stream.

    With events, kernels overlap as without a recorder.
    """
    if on.type != "cuda":
        return Recorder()
    events = StreamClock(partial(torch.cuda.Event, enable_timing=True), torch.cuda.synchronize)
    events.restart()
    return Recorder(
        clock=events.read,
        seconds=events.seconds,
        restart=events.restart,
        held=torch.cuda.memory_allocated,
    )
