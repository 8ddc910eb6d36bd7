"""Peak memory of a run: allocated on an accelerator, or by the process on a CPU."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

import torch

EVERY_S = 1e-2
"""Seconds between two samples of a CPU process's memory; an operator's own buffers live longer."""


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


@dataclass(slots=True)
class PeakMemory:
    """Peak bytes allocated, and bytes by which the process has grown, since a run began.

    `most`: maximum allocated at once. `grown`: growth of the process, including memory that the C
    library keeps after it was freed; on an accelerator equal to `most`.
    """

    most: int = 0
    grown: int = 0


@contextmanager
def watch_memory(on: torch.device) -> Iterator[PeakMemory]:
    """Context manager that measures this process's peak memory; the result is set at its end.

    Where the C library does not report allocated bytes (glibc before 2.33, or another library),
    both numbers are the growth of the process.
    """
    peak = PeakMemory()
    if on.type == "cuda":
        torch.cuda.reset_peak_memory_stats(on)
        try:
            yield peak
        finally:
            peak.most = peak.grown = torch.cuda.max_memory_allocated(on)
        return
    allocated_bytes, initial_peak, ended = _allocated_bytes_reader(), _max_resident_bytes(), Event()
    first = allocated_bytes() if allocated_bytes is not None else 0

    def watch(allocated_bytes: Callable[[], int]) -> None:
        """Sample the allocated bytes until the end, and keep their largest growth."""
        while not ended.wait(EVERY_S):
            peak.most = max(peak.most, allocated_bytes() - first)

    thread = (
        Thread(target=watch, args=(allocated_bytes,), daemon=True, name="held-memory")
        if allocated_bytes is not None
        else None
    )
    if thread is not None:
        thread.start()
    try:
        yield peak
    finally:
        ended.set()
        if thread is not None:
            thread.join()
        peak.grown = max(_max_resident_bytes() - initial_peak, 0)
        if allocated_bytes is None:
            peak.most = peak.grown


def _allocated_bytes_reader() -> Callable[[], int] | None:
    """Function that returns the bytes allocated and not freed; None if the C library has none."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    ask.restype = _Mallinfo2
    ask.argtypes = ()

    def read() -> int:
        """Bytes allocated and not freed, including mapped blocks."""
        statistics = ask()
        return int(statistics.uordblks + statistics.hblkhd)

    return read


def _max_resident_bytes() -> int:
    """Maximum resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
