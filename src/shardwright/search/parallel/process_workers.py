"""Workers that are processes of this machine: forked where that is safe, so that they share what is
loaded, else started anew.
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
from shardwright.search.search_limit import STOP

_RUN, _STOP, _END = range(3)
"""What workers are told by one number of shared memory: a lock could be left closed by one that is
killed."""
LOOK_S: Final = 0.1
"""Seconds between two looks at that number, and at whether Ctrl-C was pressed."""


class ProcessWorkers:
    """Processes with what the tasks share; see `search.parallel.engine_protocol.Workers`.

    The first Ctrl-C (`search.limit.STOP`) is told to searches that run in them; a second one, or an
    error, ends them, and so does the end of this process, however it comes.
    """

    def __init__(self, shared: object, workers: int, *, method: str = "") -> None:
        """Args:
        method: to start processes by; "" = as `start_method` says.
        """
        context: Any = multiprocessing.get_context(method or start_method())
        self._told = context.RawValue("i", _RUN)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_begin,
            initargs=(shared, self._told, os.getpid()),
        )

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Future[list[Any]]:
        """Implements `Workers.begin`."""
        with warnings.catch_warnings():
            # Later versions of Python warn of forks beside threads. Ours wait for one another at no
            # lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return self._pool.submit(_work, function, tasks)
            except BrokenProcessPool as error:
                self.kill()
                raise worker_died() from error

    def taken(self, begun: Future[list[Any]]) -> list[Any]:
        """Implements `Workers.taken`."""
        try:
            while not begun.done():
                wait([begun], timeout=LOOK_S)
                if STOP.is_set():
                    self._told.value = _STOP
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
        """Implements `Workers.kill`."""
        self._told.value = _END
        self._pool.shutdown(cancel_futures=True)


def start_method() -> str:
    """Fork on Linux, as a process that is started anew imports and loads for most of a second;
    else, and beside HiGHS, spawn.

    On more than two cores HiGHS (`scipy.optimize`) keeps threads, which a forked process has not:
    its next integer program there hands them work, and waits for ever.
    """
    keeps_threads = "scipy.optimize" in sys.modules and (os.cpu_count() or 1) > 2
    return "fork" if sys.platform == "linux" and not keeps_threads else "spawn"


def worker_died() -> ResourceError:
    """The error of a worker that ended unexpectedly."""
    return ResourceError(
        "a worker process of the search died",
        hint="most often the machine ran out of memory: fewer --workers, or --engine serial",
    )


_shared: list[Any] = []
"""In a worker: what its tasks share."""


def _begin(shared: object, told: Any, parent: int) -> None:
    """Make this process a worker."""
    # A terminal sends Ctrl-C to all processes; what it means is for the first one to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    STOP.clear()
    _shared[:] = [shared]
    Thread(target=_listen, args=(told, parent), daemon=True).start()


def _listen(told: Any, parent: int) -> None:
    while told.value != _END and os.getppid() == parent:
        if told.value == _STOP:
            STOP.set()
        time.sleep(LOOK_S)
    os._exit(1)


def _work(function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(_shared[0], task) for task in tasks]
