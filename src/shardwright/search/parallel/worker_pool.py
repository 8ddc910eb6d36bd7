"""The engine of several workers: tasks run in this process until there is enough work to start
others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from shardwright.search.parallel.engine_protocol import (
    LEAST_S,
    Ask,
    Done,
    Result,
    Shared,
    Task,
    Workers,
    results,
    rounds,
)

PORTION_S: Final = 0.02
"""Seconds of the tasks that go to a worker together: sending some takes about a thousandth of one.
"""


@dataclass(slots=True)
class _Waiting:
    """A task of a flow, with the handle of its result; None = no worker has it."""

    task: Any
    begun: Any = None


@dataclass(slots=True)
class Pooled:
    """Tasks over workers; see `search.parallel.engine_protocol.Engine`.

    How long tasks take decides where they run, never what comes out.

    Args:
        workers: at least two are worth starting.
        start: workers that hold what the tasks share.
        least_s: of work, done and expected.
        clock: seconds.
    """

    workers: int
    start: Callable[[Any, int], Workers]
    least_s: float = LEAST_S
    clock: Callable[[], float] = time.monotonic
    _shared: object = None
    _started: Workers | None = None
    _spent: dict[object, tuple[float, int]] = field(default_factory=dict)

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
        self._hold(shared)
        found: list[Result] = []
        while len(found) < len(tasks) and not self._is_worth_workers(
            function, len(tasks) - len(found), more, expected_s
        ):
            found.append(self._here(function, shared, tasks[len(found)]))
            if done is not None:
                done(len(found))
        rest = tasks[len(found) :]
        if rest:
            workers = self._workers(shared)
            try:
                for some in results(
                    workers,
                    function,
                    rounds(rest, size=self._portion(function, len(rest), expected_s)),
                ):
                    found += some
                    if done is not None:
                        done(len(found))
            except BaseException:
                self._started = None
                raise
        return found

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
        self._hold(shared)
        waiting: deque[_Waiting] = deque()
        try:
            while True:
                while len(waiting) < size and (task := ask()) is not None:
                    waiting.append(_Waiting(task))
                if not waiting:
                    return
                here = [one for one in waiting if one.begun is None]
                if here and (
                    len(here) < len(waiting)
                    or self._is_worth_workers(function, len(here), more, 0.0)
                ):
                    workers = self._workers(shared)
                    for one in here:
                        one.begun = workers.begin(function, [one.task])
                first = waiting.popleft()
                more -= 1
                if first.begun is None:
                    yield self._here(function, shared, first.task)
                else:
                    yield self._workers(shared).taken(first.begun)[0]
        except BaseException:
            started, self._started = self._started, None
            if started is not None:
                started.kill()
            raise

    def _hold(self, shared: object) -> None:
        if shared is not self._shared:
            self.close()
            self._shared = shared

    def _workers(self, shared: object) -> Workers:
        self._started = self._started or self.start(shared, self.workers)
        return self._started

    def _here(
        self, function: Callable[[Shared, Task], Result], shared: Shared, task: Task
    ) -> Result:
        """A task in this process, timed."""
        begun = self.clock()
        found = function(shared, task)
        spent, timed = self._spent.get(function, (0.0, 0))
        self._spent[function] = spent + self.clock() - begun, timed + 1
        return found

    def _mean_s(self, function: object, expected_s: float) -> float:
        spent, timed = self._spent.get(function, (0.0, 0))
        return spent / timed if timed else expected_s

    def _is_worth_workers(self, function: object, left: int, more: int, expected_s: float) -> bool:
        """True if several tasks are left and either workers run already or the remaining work is
        long enough to start them.
        """
        if self.workers < 2 or left < 2:
            return False
        done = sum(spent for spent, _ in self._spent.values())
        return (
            self._started is not None
            or done + (left + more) * self._mean_s(function, expected_s) > self.least_s
        )

    def _portion(self, function: object, tasks: int, expected_s: float) -> int:
        """Number of tasks that go to a worker together, few enough that no other worker is idle."""
        mean_s = self._mean_s(function, expected_s)
        return max(
            min(
                ceil(PORTION_S / mean_s) if mean_s > 0 else tasks, ceil(tasks / (2 * self.workers))
            ),
            1,
        )

    def close(self) -> None:
        """End the workers."""
        started, self._started, self._shared = self._started, None, None
        self._spent.clear()
        if started is not None:
            started.close()
