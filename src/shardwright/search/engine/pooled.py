"""The engine of several workers: tasks are worked out in this process until they are worth starting others for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from shardwright.search.engine.protocol import Done, Result, Shared, Task, Workers, rounds

LEAST_S: Final = 2.0
"""Seconds of work below which one process is enough."""
PORTION_S: Final = 0.02
"""Seconds of the tasks that go to a worker together: sending some takes about a thousandth of one."""


@dataclass(slots=True)
class Pooled:
    """Tasks over workers; see `search.engine.protocol.Engine`.

    How long tasks take decides where they run, never what comes out.

    Args:
        workers: at least two are worth starting. start: workers that hold what the tasks share. least_s: of work, done and expected.
        clock: seconds.
    """

    workers: int
    start: Callable[[Any, int], Workers]
    least_s: float = LEAST_S
    clock: Callable[[], float] = time.monotonic
    _shared: object = None
    _started: Workers | None = None
    _spent_s: float = 0.0
    _timed: int = 0

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
        """As `Engine.map`."""
        if shared is not self._shared:
            self.close()
            self._shared = shared
        results: list[Result] = []
        while len(results) < len(tasks) and not self._is_worth_workers(len(tasks) - len(results), more, expected_s):
            begun = self.clock()
            results.append(function(shared, tasks[len(results)]))
            self._spent_s += self.clock() - begun
            self._timed += 1
            if done is not None:
                done(len(results))
        rest = tasks[len(results) :]
        if rest:
            workers = self._started = self._started or self.start(shared, self.workers)
            try:
                for some in workers.results(function, list(rounds(rest, size=self._portion(len(rest), expected_s)))):
                    results += some
                    if done is not None:
                        done(len(results))
            except BaseException:
                self._started = None
                raise
        return results

    def _mean_s(self, expected_s: float) -> float:
        return self._spent_s / self._timed if self._timed else expected_s

    def _is_worth_workers(self, left: int, more: int, expected_s: float) -> bool:
        """More than one task is left, and there are workers or work for them. What was done so far is thought to come again."""
        if self.workers < 2 or left < 2:
            return False
        return self._started is not None or max(self._spent_s, (left + more) * self._mean_s(expected_s)) > self.least_s

    def _portion(self, tasks: int, expected_s: float) -> int:
        """Tasks that go to a worker together: not so many that another one waits for none."""
        mean_s = self._mean_s(expected_s)
        return max(min(ceil(PORTION_S / mean_s) if mean_s > 0 else tasks, ceil(tasks / (2 * self.workers))), 1)

    def close(self) -> None:
        """End the workers."""
        started, self._started, self._shared, self._spent_s, self._timed = self._started, None, None, 0.0, 0
        if started is not None:
            started.close()
