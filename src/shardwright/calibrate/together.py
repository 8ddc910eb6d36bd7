"""One measurement on all devices of a processor at once: its cores share memory, caches and power,
and are not always equally fast.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from queue import Empty
from time import monotonic
from typing import Any, TypeVar

from shardwright.calibrate.processes import context
from shardwright.errors import DataError

T = TypeVar("T")
READY_S = 120.0
"""Longest wait for the others to load PyTorch, and for what they measured once this process has."""
POLL_S = 0.1


def together(work: Callable[[], T], *, here: Callable[[], T], others: int, threads: int) -> list[T]:
    """What `here` finds in this process, and `work` in so many others at the same time.

    Args:
        work, here: the same measurement; `work` and what it returns can be pickled.
        threads: of each of the others.

    Raises:
        DataError: another process died or hung.
    """
    if not others:
        return [here()]
    made = context()
    ready, found = made.Semaphore(0), made.Queue()
    processes: list[BaseProcess] = [
        made.Process(target=_beside, args=(work, threads, ready, found), daemon=True)
        for _ in range(others)
    ]
    try:
        for process in processes:
            process.start()
        for _ in processes:
            if not ready.acquire(timeout=READY_S):
                raise DataError("a process beside did not start", hint="fewer --ranks")
        return [here(), *(_next(found, processes) for _ in processes)]
    finally:
        for process in processes:
            process.terminate()
            process.join(5.0)
        found.close()
        found.join_thread()


def _next(found: Queue[Any], processes: list[BaseProcess]) -> Any:
    deadline = monotonic() + READY_S
    while True:
        dead = [process for process in processes if process.exitcode not in (None, 0)]
        try:
            return found.get(timeout=POLL_S)
        except Empty:
            if dead or monotonic() > deadline:
                why = f"ended with exit code {dead[0].exitcode}" if dead else "did not end"
                raise DataError(
                    f"a process that measured beside {why}", hint="out of memory? try fewer --ranks"
                ) from None


def _beside(work: Callable[[], object], threads: int, ready: Any, found: Any) -> None:
    import torch

    torch.set_num_threads(threads)
    ready.release()
    found.put(work())
