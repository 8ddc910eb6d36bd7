"""Side tasks run in turn, for transports that answer one request of a device at a time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from shardwright.execute.transport.communication_requests import (
    Answer,
    Begin,
    End,
    Request,
    SideTask,
    T,
    Task,
    answer_requests,
)


class _Waiting(SideTask[Any]):
    """A side task that has not run yet, or its result."""

    __slots__ = ("found", "task")

    def __init__(self, task: Task[Any]) -> None:
        self.task: Task[Any] | None = task
        self.found: Any = None

    def run(self) -> Task[Any]:
        """Run the side task unless it has run already, and return its result."""
        if self.task is not None:
            task, self.task = self.task, None
            self.found = yield from task
        return self.found


def side_tasks_in_turn(task: Task[T]) -> Task[T]:
    """Wrap a task: side tasks run inside it, when begun, or when waited for if `late`.

    The result makes no `Begin` or `End` request.
    """

    def handler(request: Request) -> Generator[Request, Answer, Answer]:
        """Run a side task whole at its begin request, if late at its end; pass others on."""
        if isinstance(request, Begin):
            waiting = _Waiting(request.task)
            if not request.late:
                yield from waiting.run()
            return waiting
        if isinstance(request, End):
            assert isinstance(request.begun, _Waiting), "this wrapper began the task"
            return (yield from request.begun.run())
        return (yield request)

    return answer_requests(task, handler)
