"""A measured run's step time and prediction under given constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from shardwright.hardware.catalog.constants import SHIPPED, Constants
from shardwright.program.problem import Problem
from shardwright.runtime.registry import load_runtime
from shardwright.simulator.plan_simulation import simulate_grid
from shardwright.simulator.predict import predict
from shardwright.simulator.prediction import Prediction
from shardwright.validation.tables.measured_run import Case

MIN_TASKS = 64
"""Fewer tasks than this are not worth starting processes for."""


def problem_of_case(case: Case, *, constants: Constants = SHIPPED) -> Problem:
    """The problem of a measured run."""
    return Problem(
        model=case.model,
        cluster=case.cluster,
        job=case.job,
        runtime=load_runtime(case.runtime),
        constants=constants,
    )


def predict_case(case: Case, *, constants: Constants = SHIPPED) -> Prediction:
    """Time and memory of a measured run, without where its numbers come from.

    Raises:
        InfeasibleError, StrategyError, ModelError, ClusterError, RuntimeModelError: by what cannot
        be predicted.
    """
    return predict(problem_of_case(case, constants=constants), case.grid, with_sources=False)


def case_seconds(case: Case, *, constants: Constants = SHIPPED) -> float:
    """Seconds a step of a measured run, without its memory: what a fit needs."""
    return simulate_grid(problem_of_case(case, constants=constants), case.grid).step_time_s


def _seconds(task: tuple[Case, Constants]) -> float:
    return case_seconds(task[0], constants=task[1])


class Runs:
    """Cases by number: those that ran the same have the same one."""

    def __init__(self) -> None:
        self._first: dict[object, int] = {}
        self._seen: dict[int, tuple[Case, int]] = {}

    def number(self, case: Case) -> int:
        """That of the first case that ran the same."""
        if (
            id(case) not in self._seen
        ):  # a model takes long to hash; a case that was seen is kept, so that no other gets its id
            ran = (case.model, case.cluster, case.job, case.runtime, case.grid)
            self._seen[id(case)] = case, self._first.setdefault(ran, len(self._first))
        return self._seen[id(case)][1]


class Evaluator:
    """Step times of many (case, constants) pairs, in `workers` processes; pairs seen before, or of
    equal runs, are not simulated again.
    """

    def __init__(self, pool: ProcessPoolExecutor | None) -> None:
        self._pool = pool
        self._known: dict[tuple[int, Constants], float] = {}
        self._runs = Runs()

    def seconds(self, tasks: Sequence[tuple[Case, Constants]]) -> list[float]:
        """One step time a task, in order."""
        keys = [(self._runs.number(case), constants) for case, constants in tasks]
        fresh = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._known}
        todo = list(fresh.values())
        if self._pool is None or len(todo) < MIN_TASKS:
            done = [_seconds(task) for task in todo]
        else:
            done = list(self._pool.map(_seconds, todo, chunksize=16))
        self._known.update(zip(fresh, done, strict=True))
        return [self._known[key] for key in keys]


@contextmanager
def evaluator(*, workers: int = 1) -> Iterator[Evaluator]:
    """An Evaluator whose processes end with the block."""
    if workers <= 1:
        yield Evaluator(None)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        yield Evaluator(pool)
