"""Workers that are processes of this machine, forked where that is safe, else spawned.

Forked processes share the modules and kernels that are already loaded.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, Final

from shardwright.errors import ResourceError
from shardwright.search.search_time_limit import STOP

_RUN, _STOP, _END = range(3)
"""States that workers read from one number in shared memory; a killed worker could hold a lock for
ever."""
LOOK_S: Final = 0.1
"""Seconds between two checks of that number, and of Ctrl-C."""


class ProcessWorkers:
    """Worker processes with the shared input of the tasks; implements `Workers`.

    The first Ctrl-C (`search.search_time_limit.STOP`) is passed to the searches that run in the
    workers. A second Ctrl-C, an error, or any end of this process ends the workers.
    """

    def __init__(self, shared: object, workers: int, *, method: str = "") -> None:
        """Start `workers` processes that hold `shared`.

        Args:
            method: start method of multiprocessing; "" = `start_method`.
        """
        context: Any = multiprocessing.get_context(method or start_method())
        self._state = context.RawValue("i", _RUN)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(shared, self._state, os.getpid()),
        )

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Future[list[Any]]:
        """Start some tasks on a worker process; return their future."""
        with warnings.catch_warnings():
            # Later versions of Python warn of forks in a process with threads. These threads hold
            # no lock that a worker needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return self._pool.submit(_run_tasks, function, tasks)
            except BrokenProcessPool as error:
                self.kill()
                raise worker_died() from error

    def taken(self, begun: Future[list[Any]]) -> list[Any]:
        """Wait for the results of a future, and pass Ctrl-C to the workers meanwhile."""
        try:
            while not begun.done():
                wait([begun], timeout=LOOK_S)
                if STOP.is_set():
                    self._state.value = _STOP
            return begun.result()
        except BrokenProcessPool as error:
            self.kill()
            raise worker_died() from error
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """End the workers once they are idle."""
        self._pool.shutdown()

    def kill(self) -> None:
        """End the workers at once, and cancel their tasks."""
        self._state.value = _END
        self._pool.shutdown(cancel_futures=True)


def start_method() -> str:
    """Start method of worker processes: fork on Linux without HiGHS threads, else spawn.

    A spawned process imports and loads modules for most of a second. On more than two cores HiGHS
    (`scipy.optimize`) keeps threads, which a forked process does not have: its next integer program
    would hand them work, and wait for ever.
    """
    keeps_threads = "scipy.optimize" in sys.modules and (os.cpu_count() or 1) > 2
    return "fork" if sys.platform == "linux" and not keeps_threads else "spawn"


def worker_died() -> ResourceError:
    """The error of a worker process that ended unexpectedly."""
    return ResourceError(
        "a worker process of the search died",
        hint="most often the machine ran out of memory: fewer --workers, or --engine serial",
    )


_shared: list[Any] = []
"""Input that all tasks of a worker share; set in the worker process."""


def _start_worker(shared: object, state: Any, parent: int) -> None:
    """Set up this process as a worker: ignore Ctrl-C, store `shared`, watch the state number."""
    # A terminal sends Ctrl-C to all processes; only the main process interprets it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    STOP.clear()
    _shared[:] = [shared]
    Thread(target=_watch_state, args=(state, parent), daemon=True).start()


def _watch_state(state: Any, parent: int) -> None:
    """Watch the state number: set STOP when told, and exit when told or when the parent is gone."""
    while state.value != _END and os.getppid() == parent:
        if state.value == _STOP:
            STOP.set()
        time.sleep(LOOK_S)
    os._exit(1)


def _run_tasks(function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Results of the tasks, computed in the worker with its shared input."""
    return [function(_shared[0], task) for task in tasks]
