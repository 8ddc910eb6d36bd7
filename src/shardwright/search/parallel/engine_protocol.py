"""Protocol of the engines that run the independent tasks of a search: one function over many
tasks, the same results wherever they run.
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
"""Called with how many of the tasks are done."""
Ask = Callable[[], Task | None]
"""Gives the next task, None where there is none yet."""


class Engine(Protocol):
    """Runs tasks, in this process or in others.

    Args:
        workers: processes at most; no answer depends on it.
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
        """``function(shared, task)`` of every task, in their order.

        Args:
            function: of a module, so that another process finds it by name. It changes nothing but
                caches and looks at no clock.
            tasks: each a small record that can be pickled.
            shared: what all tasks read; it goes to each worker once, and stays there as long as
                maps over the same object follow one another, so it must not change meanwhile.
            expected_s: seconds that a task is thought to take; without, the first ones are timed.
            more: tasks like these that may follow.

        Raises:
            ResourceError: a worker died. What a task raised; of several the first in their order.
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
        """``function(shared, task)`` of one task after another, in the order in which they are
        asked for, at most `size` under way.

        A task is asked for whenever fewer are under way: at the beginning, and after each result,
        once it was taken. So what a task is made of is what all results but the last `size` - 1
        before it say, whatever the workers are: as in `rounds`, but that no worker waits for the
        last task of a round.

        Args:
            function, shared: as of `map`.
            ask: the next task; None = there is none before another result was taken.
            more: tasks that may follow the first ones. The flow is taken to its end: to leave it
                ends the workers.

        Raises:
            As `map`.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Workers(Protocol):
    """Processes that hold what the tasks share."""

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Any:
        """Start some tasks on a worker; returns a handle for `taken`."""
        ...

    def taken(self, begun: Any) -> list[Any]:
        """Their results. Raises as `Engine.map`; then the workers have ended."""
        ...

    def kill(self) -> None:
        """End them at once."""
        ...

    def close(self) -> None:
        """End them."""
        ...


def results(
    workers: Workers, function: Callable[[Any, Any], Any], portions: Iterable[Sequence[Any]]
) -> Iterator[list[Any]]:
    """The results of each portion of tasks, in order; all are begun at once. Raises as
    `Engine.map`; then the workers have ended.
    """
    begun = [workers.begin(function, portion) for portion in portions]
    try:
        for one in begun:
            yield workers.taken(one)
    except BaseException:
        workers.kill()
        raise


def rounds(tasks: Sequence[Task], *, size: int) -> Iterator[Sequence[Task]]:
    """Tasks in rounds of a fixed size, the last one maybe smaller.

    Where what is found makes later tasks shorter, as the best plan so far does, a round's tasks all
    begin with what was known before it, and what they find is taken over after it, in their order.
    So nothing depends on how many workers there are.
    """
    return (tasks[at : at + size] for at in range(0, len(tasks), size))
