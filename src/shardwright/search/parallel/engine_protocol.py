"""Protocol of the engines and workers that run the independent tasks of a search.

An engine applies one function to many tasks; the results are the same wherever the tasks run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

LEAST_S: Final = 2.0
"""Seconds of work below which one process is enough."""

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
Done = Callable[[int], None]
"""Progress callback, called with the number of finished tasks."""
Ask = Callable[[], Task | None]
"""Function that returns the next task, or None while there is none."""


class Engine(Protocol):
    """Runs the tasks of a search, in this process or in others.

    Args:
        workers: most processes; no answer depends on it.
    """

    workers: int

    def map(
        self,
        function: Callable[[Shared, Task], Result],
        tasks: Sequence[Task],
        *,
        shared: Shared,
        expected_s: float = 0.0,
        more: int = 0,
        done: Done | None = None,
    ) -> list[Result]:
        """Results of ``function(shared, task)`` for every task, in the order of the tasks.

        Args:
            function: function of a module, so that another process finds it by name. It changes
                nothing but caches and reads no clock.
            tasks: small records that can be pickled.
            shared: input of all tasks. It is sent to each worker once, and stays there as long as
                consecutive maps use the same object, so it must not change meanwhile.
            expected_s: expected seconds of a task; without, the first tasks are timed.
            more: number of similar tasks that may follow.

        Raises:
            ResourceError: a worker died.
            Exception: the first error, in the order of the tasks, that a task raised.
        """
        ...

    def flow(
        self,
        function: Callable[[Shared, Task], Result],
        ask: Ask[Task],
        *,
        shared: Shared,
        size: int,
        more: int = 0,
    ) -> Iterator[Result]:
        """Yield ``function(shared, task)`` for tasks from `ask`, in order, at most `size` running.

        A task is requested whenever fewer than `size` are running: at the start, and after each
        result was taken. So a task may depend on all results except the last `size` - 1 before it,
        whatever the number of workers is: as in `rounds`, but no worker waits for the last task of
        a round.

        Args:
            function, shared: as in `map`.
            ask: returns the next task; None = no task until another result was taken.
            more: number of tasks that may follow the first ones. The caller must consume all
                results: leaving the flow early ends the workers.

        Raises:
            Exception: as in `map`.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Workers(Protocol):
    """Worker processes that hold the input that all tasks share."""

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Any:
        """Start some tasks on a worker; return a handle for `taken`."""
        ...

    def taken(self, begun: Any) -> list[Any]:
        """Wait for the results of a handle of `begin`.

        Raises as `Engine.map`; then the workers have ended.
        """
        ...

    def kill(self) -> None:
        """End the workers at once."""
        ...

    def close(self) -> None:
        """End the workers after their tasks."""
        ...


def results(
    workers: Workers, function: Callable[[Any, Any], Any], portions: Iterable[Sequence[Any]]
) -> Iterator[list[Any]]:
    """Yield the result list of each portion of tasks, in order; all portions start at once.

    Raises as `Engine.map`; then the workers have ended.
    """
    begun = [workers.begin(function, portion) for portion in portions]
    try:
        for handle in begun:
            yield workers.taken(handle)
    except BaseException:
        workers.kill()
        raise


def rounds(tasks: Sequence[Task], *, size: int) -> Iterator[Sequence[Task]]:
    """Divide tasks into rounds of a fixed size; the last round may be smaller.

    Results such as the best plan so far shorten later tasks. All tasks of a round start with the
    results known before the round, and their results are merged after it, in task order. So no
    answer depends on the number of workers.
    """
    return (tasks[at : at + size] for at in range(0, len(tasks), size))
