"""Tasks that a device begins beside its own, run one behind another: for transports that answer one
request of a device at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from shardwright.execute.transport.requests import (
    Answer,
    Begin,
    Beside,
    End,
    Request,
    T,
    Task,
    answered,
)


class _Waiting(Beside[Any]):
    """A task that has not run yet, or what it returned."""

    __slots__ = ("found", "task")

    def __init__(self, task: Task[Any]) -> None:
        self.task: Task[Any] | None = task
        self.found: Any = None

    def run(self) -> Task[Any]:
        """The task's result, computed once."""
        if self.task is not None:
            task, self.task = self.task, None
            self.found = yield from task
        return self.found


def one_by_one(task: Task[T]) -> Task[T]:
    """The same task, asking neither `Begin` nor `End`: what it begins runs at once, or where it
    waits for it (`Begin.late`).
    """

    def by(request: Request) -> Generator[Request, Answer, Answer]:
        if isinstance(request, Begin):
            waiting = _Waiting(request.task)
            if not request.late:
                yield from waiting.run()
            return waiting
        if isinstance(request, End):
            assert isinstance(request.begun, _Waiting), "it was begun here"
            return (yield from request.begun.run())
        return (yield request)

    return answered(task, by)
