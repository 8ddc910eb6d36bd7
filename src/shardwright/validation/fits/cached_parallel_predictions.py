"""Predict many runs under many constants on several processes, each pair once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

from shardwright.errors import ShardwrightError
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import Progress

MIN_TASKS: Final = 16
"""Smallest number of predictions for which processes are started."""
MAX_CHUNK: Final = 16
"""Most predictions that a process gets at once."""
ResultT = TypeVar("ResultT")
Evaluate = Callable[[Any, Any], ResultT]
"""Predicts a run under constants. On several processes it must be a function of a module."""


class Predictor(Generic[ResultT]):
    """Cached predictions of (run, constants) pairs, on several processes.

    Args:
        identity: key of a run; runs with equal keys have one prediction.
    """

    def __init__(
        self,
        evaluate: Evaluate[ResultT],
        *,
        pool: ProcessPoolExecutor | None = None,
        workers: int = 1,
        identity: Callable[[Any], Hashable] = id,
    ) -> None:
        self._predict = partial(outcome, evaluate)
        self._pool = pool
        self._workers = workers
        self._identity = identity
        self._numbers: dict[Hashable, int] = {}
        self._runs: dict[int, tuple[Any, int]] = {}
        self._outcomes: dict[tuple[int, Hashable], ResultT | ShardwrightError] = {}

    def outcomes(
        self,
        tasks: Sequence[tuple[Any, Any]],
        *,
        progress: Progress | None = None,
        phase: str = "rows",
    ) -> list[ResultT | ShardwrightError]:
        """Prediction of each (run, constants) pair, or its error, in order; each computed once."""
        keys = [(self._run_number(run), constants) for run, constants in tasks]
        todo = {
            key: task for key, task in zip(keys, tasks, strict=True) if key not in self._outcomes
        }
        for done, (key, result) in enumerate(
            zip(todo, self._predict_all([*todo.values()]), strict=True)
        ):
            if progress is not None:
                progress(phase, done, len(todo))
            self._outcomes[key] = result
        return [self._outcomes[key] for key in keys]

    def results(self, tasks: Sequence[tuple[Any, Any]]) -> list[ResultT]:
        """The prediction of each (run, constants) pair, in order; raises the first error."""
        found = self.outcomes(tasks)
        for result in found:
            if isinstance(result, ShardwrightError):
                raise result
        return found  # type: ignore[return-value]

    def _predict_all(self, tasks: list[tuple[Any, Any]]) -> Iterator[ResultT | ShardwrightError]:
        """Yield the predictions of tasks, on the process pool if there are at least `MIN_TASKS`."""
        if self._pool is None or len(tasks) < MIN_TASKS:
            return map(self._predict, tasks)
        chunk = min(MAX_CHUNK, -(-len(tasks) // (4 * self._workers)))
        return self._pool.map(self._predict, tasks, chunksize=chunk)

    def _run_number(self, run: Any) -> int:
        """Number of a run for cache keys; runs with equal identity keys have the same number."""
        if id(run) not in self._runs:
            # Keys take long to hash. The run is kept, so that no other object gets its id.
            number = self._numbers.setdefault(self._identity(run), len(self._numbers))
            self._runs[id(run)] = run, number
        return self._runs[id(run)][1]


def outcome(evaluate: Evaluate[ResultT], task: tuple[Any, Any]) -> ResultT | ShardwrightError:
    """Predict a (run, constants) pair, or return the project's error that was raised."""
    try:
        return evaluate(*task)
    except ShardwrightError as error:
        return error


@contextmanager
def predictor(
    evaluate: Evaluate[ResultT], *, workers: int = 1, identity: Callable[[Any], Hashable] = id
) -> Iterator[Predictor[ResultT]]:
    """Context with a `Predictor` whose processes end with the block."""
    if workers <= 1:
        yield Predictor(evaluate, identity=identity)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        yield Predictor(evaluate, pool=pool, workers=workers, identity=identity)
