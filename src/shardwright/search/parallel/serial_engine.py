"""The engine that runs tasks one after another in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwright.search.parallel.engine_protocol import Ask, Done, Result, Shared, Task


@dataclass(slots=True)
class Serial:
    """One task after another; see `search.parallel.engine_protocol.Engine`."""

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
        """Implements `Engine.map`."""
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
        """Implements `Engine.flow`."""
        waiting: deque[Task] = deque()
        while True:
            while len(waiting) < size and (task := ask()) is not None:
                waiting.append(task)
            if not waiting:
                return
            yield function(shared, waiting.popleft())

    def close(self) -> None:
        """Nothing: there are no workers."""
