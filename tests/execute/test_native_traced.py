"""What a step of PyTorch's engine tells: by a clock of events, which are read once it is over; and
nothing where nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

pytest.importorskip("torch")

from shardwright.execute.interpreter.step_recorder import STEP_LEVEL, Recorder
from shardwright.execute.native.step_events import NO_LISTENER, StreamClock, listener_of_step
from shardwright.program.step_trace import Track
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind


@dataclass(slots=True)
class Mark:
    """An event of a stream that is reached ten milliseconds behind the one before."""

    ticks: Iterator[int]
    at: int = -1

    def record(self) -> None:
        self.at = next(self.ticks)

    def elapsed_time(self, other: Mark) -> float:
        assert other.at >= 0, "it was recorded"
        return 10.0 * (other.at - self.at)


def test_events_are_read_once_the_step_is_over() -> None:
    ticks, hours, settled = count(), count(3600, 3600), count()

    def settle() -> None:
        next(settled)

    events = StreamClock(lambda: Mark(ticks), settle, clock=lambda: float(next(hours)))
    events.restart()
    recorder = Recorder(
        clock=events.read, seconds=events.seconds, restart=events.restart, held=lambda: 5
    )
    for number in range(2):
        listener = listener_of_step(recorder, device=3)
        before = next(settled)
        listener.tell(TaskKind.F, (0, 1, number, 0))
        with listener.record_request("all_gather", track=Track.COLLECTIVES):
            pass
        listener.tell(TaskKind.STEP, STEP_LEVEL)
        listener.tell(None, STEP_LEVEL)
        assert next(settled) == before + 1, "a step waits for no event"
    forward, update, gather = recorder.trace(plan="small").spans
    assert (forward.kind, forward.chunk, forward.microbatch, update.kind) == ("F", 1, 1, "STEP")
    assert (gather.kind, gather.within, gather.chunk, gather.device) == ("all_gather", "F", 1, 3)
    times = [t for s in (forward, gather, update) for t in (s.start_s, s.end_s)]
    assert times == pytest.approx([0.0, 0.03, 0.01, 0.02, 0.03, 0.04])
    assert len(events.marks) == 6, "of the last step alone"
    assert [m.time_s for m in recorder.trace(plan="small").memory] == pytest.approx(
        [0.0, 0.03, 0.04]
    )


def test_where_nobody_listens_no_clock_is_read() -> None:
    assert listener_of_step(None, device=0) is NO_LISTENER
    with NO_LISTENER.record_request("send", track=Track.MESSAGES):
        NO_LISTENER.tell(TaskKind.F, STEP_LEVEL)
