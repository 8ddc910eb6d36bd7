"""The engine of several workers, which are started once there is enough work for them."""

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
"""Seconds of work that a worker is sent at once; sending tasks takes about a millisecond."""


@dataclass(slots=True)
class _Waiting:
    """A task of a flow, with the handle of its result; None = not sent to a worker."""

    task: Any
    begun: Any = None


@dataclass(slots=True)
class Pooled:
    """Engine that distributes tasks over workers; implements `Engine`.

    The durations of tasks determine where tasks run, never the results.

    Args:
        workers: number of workers; fewer than two are not started.
        start: starts workers that hold the shared input.
        least_s: seconds of work, done and expected, from which workers are started.
        clock: returns seconds.
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
        """Results of ``function(shared, task)`` for all tasks, on workers once worthwhile."""
        self._require_shared(shared)
        outcomes: list[Result] = []
        while len(outcomes) < len(tasks) and not self._is_worth_workers(
            function, len(tasks) - len(outcomes), more, expected_s
        ):
            outcomes.append(self._run_here(function, shared, tasks[len(outcomes)]))
            if done is not None:
                done(len(outcomes))
        rest = tasks[len(outcomes) :]
        if rest:
            workers = self._running_workers(shared)
            try:
                for portion_results in results(
                    workers,
                    function,
                    rounds(rest, size=self._portion(function, len(rest), expected_s)),
                ):
                    outcomes += portion_results
                    if done is not None:
                        done(len(outcomes))
            except BaseException:
                self._started = None
                raise
        return outcomes

    def flow(
        self,
        function: Callable[[Shared, Task], Result],
        ask: Ask[Task],
        *,
        shared: Shared,
        size: int,
        more: int = 0,
    ) -> Iterator[Result]:
        """Yield ``function(shared, task)`` for tasks from `ask`, in order, `size` at once."""
        self._require_shared(shared)
        waiting: deque[_Waiting] = deque()
        try:
            while True:
                while len(waiting) < size and (task := ask()) is not None:
                    waiting.append(_Waiting(task))
                if not waiting:
                    return
                unsent = [item for item in waiting if item.begun is None]
                if unsent and (
                    len(unsent) < len(waiting)
                    or self._is_worth_workers(function, len(unsent), more, 0.0)
                ):
                    workers = self._running_workers(shared)
                    for item in unsent:
                        item.begun = workers.begin(function, [item.task])
                first = waiting.popleft()
                more -= 1
                if first.begun is None:
                    yield self._run_here(function, shared, first.task)
                else:
                    yield self._running_workers(shared).taken(first.begun)[0]
        except BaseException:
            started, self._started = self._started, None
            if started is not None:
                started.kill()
            raise

    def _require_shared(self, shared: object) -> None:
        """Close the workers if they hold another shared input than `shared`."""
        if shared is not self._shared:
            self.close()
            self._shared = shared

    def _running_workers(self, shared: object) -> Workers:
        """The running workers, started if there are none."""
        self._started = self._started or self.start(shared, self.workers)
        return self._started

    def _run_here(
        self, function: Callable[[Shared, Task], Result], shared: Shared, task: Task
    ) -> Result:
        """Run a task in this process, and add its duration to the function's statistics."""
        begun = self.clock()
        result = function(shared, task)
        spent, timed = self._spent.get(function, (0.0, 0))
        self._spent[function] = spent + self.clock() - begun, timed + 1
        return result

    def _mean_s(self, function: object, expected_s: float) -> float:
        """Mean measured seconds of a function's tasks, or `expected_s` without a measurement."""
        spent, timed = self._spent.get(function, (0.0, 0))
        return spent / timed if timed else expected_s

    def _is_worth_workers(self, function: object, left: int, more: int, expected_s: float) -> bool:
        """True if workers run already or the remaining work justifies starting them.

        Also requires at least two remaining tasks and two workers.
        """
        if self.workers < 2 or left < 2:
            return False
        spent_s = sum(spent for spent, _ in self._spent.values())
        return (
            self._started is not None
            or spent_s + (left + more) * self._mean_s(function, expected_s) > self.least_s
        )

    def _portion(self, function: object, tasks: int, expected_s: float) -> int:
        """Number of tasks to send to a worker at once, few enough that no worker is left idle."""
        mean_s = self._mean_s(function, expected_s)
        return max(
            min(
                ceil(PORTION_S / mean_s) if mean_s > 0 else tasks, ceil(tasks / (2 * self.workers))
            ),
            1,
        )

    def close(self) -> None:
        """End the workers, and forget the shared input and the measured durations."""
        started, self._started, self._shared = self._started, None, None
        self._spent.clear()
        if started is not None:
            started.close()
