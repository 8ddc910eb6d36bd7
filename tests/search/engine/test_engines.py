"""Engines: results in the order of the tasks, one error, and workers that end as they should,
whatever runs the tasks."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import InfeasibleError, ResourceError, UsageError
from shardwright.search.parallel.engine_by_name import PROCESSES, SERIAL, engine_of
from shardwright.search.parallel.engine_protocol import results, rounds
from shardwright.search.parallel.engine_that_distributes_tasks_over_workers import Pooled
from shardwright.search.parallel.process_workers import ProcessWorkers, start_method
from shardwright.search.search_time_limit import STOP
from tests.search.engine.stand_in_ray import StandIn
from tests.tiers import chosen

SOME = [(SERIAL, 1), (PROCESSES, 1), (PROCESSES, 2), (PROCESSES, 3)]
"""Engines and workers; Ray takes seconds to begin, and has a test of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A task."""

    number: int
    sleep_s: float = 0.0


def answered(shared: list[int], task: Asked) -> tuple[int, int]:
    """What is shared, and the task."""
    time.sleep(task.sleep_s)
    return shared[task.number % len(shared)], task.number


def refused(shared: int, task: int) -> int:
    """An error from a number on, the later one at once."""
    if task < shared:
        return task
    time.sleep(0.2 if task == shared else 0.0)
    raise InfeasibleError(f"task {task} does not fit", hint=f"less than {shared}")


def killed(shared: int, task: int) -> int:
    """One task takes its process with it."""
    if task == shared:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def process_of(_: None, task: int) -> int:
    """The process of a task."""
    time.sleep(0.01)
    return os.getpid()


def stopped(_: None, task: int) -> bool:
    """Whether a search that looks at Ctrl-C in a worker ends by it."""
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        if STOP.is_set():
            return True
        time.sleep(0.01)
    return False


def tasks_of(seed: int) -> list[Asked]:
    generator = random.Random(seed)
    return [
        Asked(number=number, sleep_s=generator.choice((0.0, 0.0, 0.01)))
        for number in range(generator.choice((0, 1, 2, 37)))
    ]


@pytest.fixture(autouse=True)
def _not_stopped() -> Iterator[None]:
    yield
    STOP.clear()


@pytest.mark.parametrize(("name", "workers"), chosen(SOME, SOME[:3]))
def test_results_are_in_the_order_of_the_tasks(name: str, workers: int) -> None:
    with engine_of(name, workers=workers, least_s=0.0) as engine:
        for seed in range(8):
            tasks, shared, counts = tasks_of(seed), [seed, 7, 9], list[int]()
            found = engine.map(answered, tasks, shared=shared, done=counts.append)
            assert found == [(shared[task.number % 3], task.number) for task in tasks]
            assert counts == sorted(counts)
            assert not tasks or counts[-1] == len(tasks)


@dataclass(slots=True)
class Grown:
    """A search whose tasks follow from what it found: each result begets others, fewer the more
    were taken.

    Args:
        taken: results, in order.
        known: how many were taken when each task was asked for.
    """

    left: list[int]
    taken: list[tuple[int, int]] = field(default_factory=list)
    known: list[int] = field(default_factory=list)

    def ask(self) -> Asked | None:
        if not self.left:
            return None
        self.known.append(len(self.taken))
        number = self.left.pop(0)
        return Asked(number=number, sleep_s=0.003 * (number % 5))

    def take(self, result: tuple[int, int]) -> None:
        self.taken.append(result)
        if len(self.known) + len(self.left) < 60:
            self.left += [result[1] + 7, result[1] + 3][: 1 + len(self.taken) % 2]


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_flow_takes_results_in_order_and_asks_for_each_task_by_what_was_taken_before(
    size: int,
) -> None:
    shared, found = [5, 6, 7], list[Grown]()
    for name, workers in SOME:
        search = Grown(left=[1, 2])
        with engine_of(name, workers=workers, least_s=0.0) as engine:
            for result in engine.flow(answered, search.ask, shared=shared, size=size):
                search.take(result)
        assert len(search.taken) == len(search.known) > 50
        found.append(search)
    assert found == [found[0]] * len(SOME)
    # At most so many are under way, and as many wherever there are tasks for them.
    behind = [place - known for place, known in enumerate(found[0].known)]
    assert max(behind) == size - 1


@pytest.mark.parametrize(("name", "workers"), chosen(SOME, SOME[:3]))
def test_the_error_of_a_flow_is_that_of_its_first_task_that_fails(name: str, workers: int) -> None:
    with engine_of(name, workers=workers, least_s=0.0) as engine:
        some = iter(range(9))
        with pytest.raises(InfeasibleError, match="task 5 does not fit"):
            list(engine.flow(refused, lambda: next(some, None), shared=5, size=4))
        some = iter(range(9))
        assert list(engine.flow(refused, lambda: next(some, None), shared=10, size=4)) == list(
            range(9)
        )
    assert not multiprocessing.active_children()


def test_a_flow_that_is_left_ends_its_workers() -> None:
    tasks = iter(
        [Asked(number=0), *(Asked(number=number, sleep_s=100.0) for number in range(1, 4))]
    )
    with engine_of(PROCESSES, workers=2, least_s=0.0) as engine:
        flow = engine.flow(answered, lambda: next(tasks, None), shared=[1], size=3)
        assert next(flow) == (1, 0)
        flow.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_spawned_workers_answer_the_same() -> None:
    tasks, shared = [Asked(number=number) for number in range(5)], [4, 2]
    workers = ProcessWorkers(shared, 2, method="spawn")
    try:
        found = [one for some in results(workers, answered, rounds(tasks, size=2)) for one in some]
    finally:
        workers.close()
    assert found == [(shared[task.number % 2], task.number) for task in tasks]


@pytest.mark.parametrize(("name", "workers"), chosen(SOME, SOME[:3]))
def test_the_error_is_that_of_the_first_task_that_fails(name: str, workers: int) -> None:
    with engine_of(name, workers=workers, least_s=0.0) as engine:
        with pytest.raises(InfeasibleError, match=r"task 5 does not fit \(hint: less than 5\)"):
            engine.map(refused, list(range(9)), shared=5)
        # What failed leaves nothing behind.
        assert engine.map(refused, list(range(9)), shared=10) == list(range(9))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_dies_is_said_in_one_line(method: str) -> None:
    workers = ProcessWorkers(3, 2, method=method)
    with pytest.raises(ResourceError, match="a worker process of the search died") as caught:
        list(results(workers, killed, [[0], [1], [2], [3], [4]]))
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_no_process_is_forked_beside_solvers_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setitem(sys.modules, "scipy.optimize", sys)
    assert start_method() == "spawn"
    monkeypatch.delitem(sys.modules, "scipy.optimize")
    assert start_method() == "fork"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert start_method() == "spawn"


def test_ctrl_c_reaches_searches_in_workers() -> None:
    with engine_of(PROCESSES, workers=2, least_s=0.0) as engine:
        STOP.set()
        assert engine.map(stopped, [0, 1], shared=None) == [True, True]


def test_a_second_ctrl_c_ends_workers_at_once() -> None:
    def pressed(done: int) -> None:
        raise KeyboardInterrupt

    tasks = [Asked(number=0), *(Asked(number=number, sleep_s=100.0) for number in range(1, 4))]
    with engine_of(PROCESSES, workers=2, least_s=0.0) as engine, pytest.raises(KeyboardInterrupt):
        engine.map(answered, tasks, shared=[1], expected_s=100.0, done=pressed)
    assert not multiprocessing.active_children()


ORPHANS = """
import os, sys, time
from tests.search.engine.test_engines import Asked, answered
from shardwright.search.parallel.process_workers import ProcessWorkers, start_method
from shardwright.search.parallel.engine_protocol import results

workers = ProcessWorkers([1], 2)
sent = results(workers, answered,\
 [[Asked(number=0)], *([Asked(number=n, sleep_s=100.0)] for n in range(4))])
next(sent)
import multiprocessing
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), 9)
"""


def test_workers_end_with_the_process_that_began_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    left = 100
    while left and any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in pids
    ):
        time.sleep(0.1)
        left -= 1
    assert left


@dataclass(slots=True)
class Counted:
    """Workers of this process, counted."""

    started: list[int] = field(default_factory=list)
    portions: list[int] = field(default_factory=list)
    ended: int = 0
    killed: int = 0

    def __call__(self, shared: object, workers: int) -> _Held:
        self.started.append(workers)
        return _Held(shared, self)


@dataclass(slots=True)
class _Held:
    shared: object
    counted: Counted

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> list[Any]:
        self.counted.portions.append(len(tasks))
        return [function(self.shared, task) for task in tasks]

    def taken(self, begun: list[Any]) -> list[Any]:
        return begun

    def kill(self) -> None:
        self.counted.killed += 1

    def close(self) -> None:
        self.counted.ended += 1


@dataclass(slots=True)
class Clock:
    """A clock that tasks move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def takes(clocks: list[Clock], task: float) -> float:
    """A task of so many seconds."""
    clocks[0].now += task
    return task


def takes_as_long(clocks: list[Clock], task: float) -> float:
    """The same by another name."""
    return takes(clocks, task)


def test_workers_are_started_for_work_that_is_worth_them() -> None:
    clock, counted = Clock(), Counted()
    held = [clock]
    engine = Pooled(workers=4, start=counted, least_s=2.0, clock=clock)
    assert engine.map(takes, [0.1] * 15, shared=held) == [0.1] * 15
    engine.map(takes, [0.1] * 4, shared=held)
    assert counted.started == []
    # What was done and what is to come take two seconds together.
    engine.map(takes, [0.1] * 6, shared=held)
    assert counted.started == [4]
    # They stay as long as the same is shared, and one task alone is not sent.
    engine.map(takes, [0.1] * 6, shared=held)
    engine.map(takes, [0.1], shared=held)
    assert (counted.started, counted.ended) == ([4], 0)
    other = [clock]
    engine.map(takes, [0.1] * 6, shared=other)
    assert (counted.started, counted.ended) == ([4], 1)
    # Tasks that are to follow count too, at the pace of those of their own function.
    engine.map(takes, [0.1] * 3, shared=other, more=10)
    engine.map(takes_as_long, [0.0] * 3, shared=other, more=1000)
    assert counted.started == [4]
    engine.map(takes, [0.1] * 3, shared=other, more=20)
    assert counted.started == [4, 4]
    engine.close()


def test_a_few_long_tasks_are_sent_as_soon_as_one_was_timed_and_short_ones_together() -> None:
    clock, counted = Clock(), Counted()
    held = [clock]
    engine = Pooled(workers=2, start=counted, least_s=2.0, clock=clock)
    engine.map(takes, [5.0, 5.0, 5.0, 5.0], shared=held)
    assert counted.portions == [1, 1, 1]
    engine.close()
    engine.map(takes, [0.0001] * 400, shared=held, expected_s=1.0)
    assert counted.portions[3:] == [1] * 400
    engine.close()
    engine.least_s = 0.01
    engine.map(takes, [0.0001] * 401, shared=held)
    assert counted.portions[403:] == [100, 100, 100, 100]
    engine.close()


def test_one_worker_is_this_process() -> None:
    with engine_of(PROCESSES, workers=1, least_s=0.0) as engine:
        assert set(engine.map(process_of, [1, 2, 3], shared=None, expected_s=100.0)) == {
            os.getpid()
        }
    with engine_of(PROCESSES, workers=2, least_s=0.0) as engine:
        found = set(engine.map(process_of, list(range(40)), shared=None, expected_s=0.01))
        assert os.getpid() not in found
        assert len(found) == 2


def test_rounds_hold_every_task_once_in_order() -> None:
    for count in range(12):
        tasks = list(range(count))
        some = list(rounds(tasks, size=5))
        assert [task for each in some for task in each] == tasks
        assert all(len(each) == 5 for each in some[:-1])


def test_unknown_and_missing_engines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(UsageError, match=r"no engine 'proceses' \(hint: did you mean processes\?\)"),
        engine_of("proceses"),
    ):
        pass
    monkeypatch.setattr("shardwright.search.parallel.engine_by_name.find_spec", lambda name: None)
    with (
        pytest.raises(
            UsageError, match=r"needs the package ray \(hint: pip install 'shardwright\[ray\]'"
        ),
        engine_of("ray"),
    ):
        pass


def test_ray_answers_the_same_and_says_errors(ray: StandIn | None) -> None:
    with engine_of("ray", workers=2, least_s=0.0) as engine:
        tasks, shared = [Asked(number=number) for number in range(37)], [3, 1]
        assert engine.map(answered, tasks, shared=shared) == [
            answered(shared, task) for task in tasks
        ]
        with pytest.raises(InfeasibleError, match="task 5 does not fit"):
            engine.map(refused, list(range(9)), shared=5)
        with pytest.raises(ResourceError, match="died"):
            engine.map(killed, list(range(9)), shared=5)
    # What tasks share is stored once a map; an error ends Ray, which the next map begins anew.
    assert ray is None or (ray.puts, ray.begun_with) == (3, [2, 2, 2])
