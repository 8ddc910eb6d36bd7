"""Runners of side tasks: on a CUDA stream, or in a thread of the host."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol

import torch

from shardwright.execute.transport.communication_requests import (
    Answer,
    GroupExchange,
    Reduce,
    Request,
    SideTask,
    Task,
)

GroupAnswers = Callable[[Reduce | GroupExchange], Answer]
"""Answers a request of a group on the communicators of side tasks."""


class SideTasks(Protocol):
    """Runner of side tasks, one after another in the order in which they were begun."""

    def begin(self, task: Task[Any], answers: GroupAnswers) -> SideTask[Any]:
        """Start or queue a task of collectives beside the main task; return its handle."""

    def end(self, begun: SideTask[Any]) -> Any:
        """Wait until a side task has ended, and return its result."""

    def close(self) -> None:
        """End the runner after its queued tasks; it begins no further ones."""


def run_to_end(task: Task[Any], answers: GroupAnswers) -> tuple[Any, list[Request]]:
    """Run a task whose collectives `answers` runs: (its result, the requests that it made)."""
    requests: list[Request] = []
    answer: Answer = None
    while True:
        try:
            request = task.send(answer)
        except StopIteration as end:
            return end.value, requests
        assert isinstance(request, Reduce | GroupExchange), (
            "messages between two devices have no communicator beside the others"
        )
        requests.append(request)
        answer = answers(request)


class _StreamTask(SideTask[Any]):
    """A side task on a CUDA stream: its result, its requests and the event at its end."""

    __slots__ = ("asked", "done", "found")

    def __init__(self, result: Any, requests: list[Request], done: torch.cuda.Event) -> None:
        self.found, self.asked, self.done = result, requests, done


class StreamSideTasks:
    """Runner of side tasks on a CUDA stream of its own, which never blocks the host.

    The side stream waits for earlier work of the device's stream, and the device's stream waits for
    the task's end. A task's requests are kept until its end, so that the allocator does not reuse
    tensors that the stream reads.
    """

    def __init__(self, on: torch.device) -> None:
        self._on, self._stream = on, torch.cuda.Stream(on)

    def begin(self, task: Task[Any], answers: GroupAnswers) -> SideTask[Any]:
        """Queue a task on the side stream, after all work queued so far.

        See `SideTasks.begin`.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._on))
        with torch.cuda.stream(self._stream):
            result, requests = run_to_end(task, answers)
            done = torch.cuda.Event()
            done.record(self._stream)
        return _StreamTask(result, requests, done)

    def end(self, begun: SideTask[Any]) -> Any:
        """Make the current stream wait for the task, and return its result.

        See `SideTasks.end`.
        """
        assert isinstance(begun, _StreamTask), "this runner began the task"
        torch.cuda.current_stream(self._on).wait_event(begun.done)
        begun.asked.clear()
        return begun.found

    def close(self) -> None:
        """Do nothing: a stream needs no end."""


class _ThreadTask(SideTask[Any]):
    """A side task in a thread: its result or its error, and the event of its end."""

    __slots__ = ("answers", "done", "failed", "found", "task")

    def __init__(self, task: Task[Any], answers: GroupAnswers) -> None:
        self.task, self.answers, self.done = task, answers, Event()
        self.found: Any = None
        self.failed: Exception | None = None


class ThreadSideTasks:
    """Runner of side tasks in a thread that communicates while the device computes.

    Waits end at the backend's time limit.
    """

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_ThreadTask | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, task: Task[Any], answers: GroupAnswers) -> SideTask[Any]:
        """Queue a task for the thread, which is started at the first task.

        See `SideTasks.begin`.
        """
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True, name=self._name)
            self._thread.start()
        begun = _ThreadTask(task, answers)
        self._queue.put(begun)
        return begun

    def end(self, begun: SideTask[Any]) -> Any:
        """Wait for the task and return its result, or raise its error."""
        assert isinstance(begun, _ThreadTask), "this runner began the task"
        begun.done.wait()
        if begun.failed is not None:
            raise begun.failed
        return begun.found

    def close(self) -> None:
        """Let the thread end after the queued tasks.

        See `SideTasks.close`.
        """
        self._queue.put(None)

    def _work(self) -> None:
        """Run queued tasks until None is queued, and store results or errors."""
        while (begun := self._queue.get()) is not None:
            try:
                with torch.no_grad():
                    begun.found, _ = run_to_end(begun.task, begun.answers)
            except Exception as error:
                begun.failed = error
            begun.done.set()
