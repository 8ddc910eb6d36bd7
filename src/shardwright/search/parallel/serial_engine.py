"""The engine that runs tasks one after another in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwright.search.parallel.engine_protocol import Ask, Done, Result, Shared, Task


@dataclass(slots=True)
class Serial:
    """Engine that runs one task after another in this process; implements `Engine`."""

    workers: int = 1

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
        """Results of ``function(shared, task)`` for every task, computed one after another."""
        results: list[Result] = []
        for task in tasks:
            results.append(function(shared, task))
            if done is not None:
                done(len(results))
        return results

    def flow(
        self,
        function: Callable[[Shared, Task], Result],
        ask: Ask[Task],
        *,
        shared: Shared,
        size: int,
        more: int = 0,
    ) -> Iterator[Result]:
        """Yield ``function(shared, task)`` for tasks from `ask`; up to `size` tasks are queued."""
        waiting: deque[Task] = deque()
        while True:
            while len(waiting) < size and (task := ask()) is not None:
                waiting.append(task)
            if not waiting:
                return
            yield function(shared, waiting.popleft())

    def close(self) -> None:
        """Do nothing, as there are no workers."""
