"""Tasks that a device begins beside its own: on a stream of its accelerator, or in a thread of its
host.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol

import torch

from shardwright.execute.transport.requests import Answer, Beside, Exchange, Reduce, Request, Task

Answers = Callable[[Reduce | Exchange], Answer]
"""Answers a request of groups, on communicators of what runs beside."""


class Asides(Protocol):
    """Runs tasks one behind another, in the order in which they were begun."""

    def begin(self, task: Task[Any], answers: Answers) -> Beside[Any]:
        """Run it beside what its device does next."""

    def end(self, begun: Beside[Any]) -> Any:
        """The result of the task."""

    def close(self) -> None:
        """Nothing more is begun."""


def drained(task: Task[Any], answers: Answers) -> tuple[Any, list[Request]]:
    """(what a task returns, what it asked). It asks nothing but requests of groups."""
    asked: list[Request] = []
    answer: Answer = None
    while True:
        try:
            request = task.send(answer)
        except StopIteration as end:
            return end.value, asked
        assert isinstance(request, Reduce | Exchange), (
            "messages between two devices have no communicator beside the others"
        )
        asked.append(request)
        answer = answers(request)


class _Streamed(Beside[Any]):
    __slots__ = ("asked", "done", "found")

    def __init__(self, found: Any, asked: list[Request], done: torch.cuda.Event) -> None:
        self.found, self.asked, self.done = found, asked, done


class StreamAsides:
    """On a stream of an accelerator. The host never waits: the stream waits for what was asked
    before, and who ends for the stream.

    What a task asked is kept until it is ended, so that no tensor that the stream reads is given to
    others.
    """

    def __init__(self, on: torch.device) -> None:
        self._on, self._stream = on, torch.cuda.Stream(on)

    def begin(self, task: Task[Any], answers: Answers) -> Beside[Any]:
        """See `Asides`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._on))
        with torch.cuda.stream(self._stream):
            found, asked = drained(task, answers)
            done = torch.cuda.Event()
            done.record(self._stream)
        return _Streamed(found, asked, done)

    def end(self, begun: Beside[Any]) -> Any:
        """See `Asides`."""
        assert isinstance(begun, _Streamed), "it was begun here"
        torch.cuda.current_stream(self._on).wait_event(begun.done)
        begun.asked.clear()
        return begun.found

    def close(self) -> None:
        """See `Asides`."""


class _Threaded(Beside[Any]):
    __slots__ = ("answers", "done", "failed", "found", "task")

    def __init__(self, task: Task[Any], answers: Answers) -> None:
        self.task, self.answers, self.done = task, answers, Event()
        self.found: Any = None
        self.failed: Exception | None = None


class ThreadAsides:
    """In a thread of the host, which waits for other ranks while the device computes. Waits end
    when the backend's limit is over.
    """

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Threaded | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, task: Task[Any], answers: Answers) -> Beside[Any]:
        """See `Asides`."""
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True, name=self._name)
            self._thread.start()
        begun = _Threaded(task, answers)
        self._queue.put(begun)
        return begun

    def end(self, begun: Beside[Any]) -> Any:
        """See `Asides`. Errors of a task pass."""
        assert isinstance(begun, _Threaded), "it was begun here"
        begun.done.wait()
        if begun.failed is not None:
            raise begun.failed
        return begun.found

    def close(self) -> None:
        """See `Asides`."""
        self._queue.put(None)

    def _work(self) -> None:
        while (begun := self._queue.get()) is not None:
            try:
                with torch.no_grad():
                    begun.found, _ = drained(begun.task, begun.answers)
            except Exception as error:
                begun.failed = error
            begun.done.set()
