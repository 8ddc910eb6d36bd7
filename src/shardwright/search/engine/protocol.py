"""Where the independent parts of a search are worked out: one function over many tasks, with the same answer wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
Done = Callable[[int], None]
"""Called with how many of the tasks are done."""


class Engine(Protocol):
    """Works tasks out, in this process or in others.

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
            function: of a module, so that another process finds it by name. It changes nothing but caches and looks at no clock. tasks:
                each a small record that can be pickled. shared: what all tasks read; it goes to each worker once, and stays there as long
                as maps over the same object follow one another, so it must not change meanwhile.
            expected_s: seconds that a task is thought to take; without, the first ones are timed. more: tasks like these that may follow.

        Raises:
            ResourceError: a worker died. What a task raised; of several the first in their order.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Workers(Protocol):
    """Processes that hold what the tasks share."""

    def results(self, function: Callable[[Any, Any], Any], portions: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
        """The results of each portion of tasks, in order. Raises as `Engine.map`; then the workers have ended."""
        ...

    def close(self) -> None:
        """End them."""
        ...


def rounds(tasks: Sequence[Task], *, size: int) -> Iterator[Sequence[Task]]:
    """Tasks in rounds of a fixed size, the last one maybe smaller.

    Where what is found makes later tasks shorter, as the best plan so far does, a round's tasks all begin with what was known before it,
    and what they find is taken over after it, in their order. So nothing depends on how many workers there are.
    """
    return (tasks[at : at + size] for at in range(0, len(tasks), size))
