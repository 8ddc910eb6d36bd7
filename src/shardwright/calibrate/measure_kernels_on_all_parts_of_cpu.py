"""One measurement in several processes at once, for devices that are parts of a processor.

Cores share memory, caches and power, and are not always equally fast.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from queue import Empty
from time import monotonic
from typing import Any, TypeVar

from shardwright.calibrate.fork_server_with_torch import process_context
from shardwright.errors import DataError

T = TypeVar("T")
READY_S = 120.0
"""Longest wait, in seconds, for other processes to load PyTorch, and for their results once this
process has its own.
"""
POLL_S = 0.1


def measure_simultaneously(
    work: Callable[[], T], *, here: Callable[[], T], others: int, threads: int
) -> list[T]:
    """Run `here` in this process and `work` in `others` processes at once; return all results.

    Args:
        work, here: the same measurement; `work` and its result can be pickled.
        threads: PyTorch threads of each other process.

    Raises:
        DataError: another process died or hung.
    """
    if not others:
        return [here()]
    multiprocessing = process_context()
    ready, results = multiprocessing.Semaphore(0), multiprocessing.Queue()
    processes: list[BaseProcess] = [
        multiprocessing.Process(
            target=_measure_in_process, args=(work, threads, ready, results), daemon=True
        )
        for _ in range(others)
    ]
    try:
        for process in processes:
            process.start()
        for _ in processes:
            if not ready.acquire(timeout=READY_S):
                raise DataError("a process beside did not start", hint="fewer --ranks")
        return [here(), *(_next_result(results, processes) for _ in processes)]
    finally:
        for process in processes:
            process.terminate()
            process.join(5.0)
        results.close()
        results.join_thread()


def _next_result(results: Queue[Any], processes: list[BaseProcess]) -> Any:
    """Wait for a measuring process's result; DataError if one died or none sends in time."""
    deadline = monotonic() + READY_S
    while True:
        dead = [process for process in processes if process.exitcode not in (None, 0)]
        try:
            return results.get(timeout=POLL_S)
        except Empty:
            if dead or monotonic() > deadline:
                reason = f"ended with exit code {dead[0].exitcode}" if dead else "did not end"
                raise DataError(
                    f"a process that measured beside {reason}",
                    hint="out of memory? try fewer --ranks",
                ) from None


def _measure_in_process(work: Callable[[], object], threads: int, ready: Any, results: Any) -> None:
    """Body of another process: load PyTorch, report ready, measure, and send the result."""
    import torch

    torch.set_num_threads(threads)
    ready.release()
    results.put(work())
