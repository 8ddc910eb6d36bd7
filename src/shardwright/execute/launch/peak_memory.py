"""Peak memory of a run: tensors on an accelerator; on a CPU, memory that the process has allocated
and not freed.
"""

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
"""Seconds between two looks at a processor's memory: an operator's own buffers live longer."""


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
    """Bytes since a run began. most: held at once. grown: by which the process is larger than
    before: what the C library keeps of what was freed is in it; on an accelerator as `most`.
    """

    most: int = 0
    grown: int = 0


@contextmanager
def watch_memory(on: torch.device) -> Iterator[PeakMemory]:
    """The peak memory of this process while the context lasts, known after it.

    Where the C library does not say what is in use (it is not glibc's, 2.33 or later) both numbers
    are what the process grew by.
    """
    found = PeakMemory()
    if on.type == "cuda":
        torch.cuda.reset_peak_memory_stats(on)
        try:
            yield found
        finally:
            found.most = found.grown = torch.cuda.max_memory_allocated(on)
        return
    look, before, ended = _in_use(), _largest(), Event()
    first = look() if look is not None else 0

    def watch(look: Callable[[], int]) -> None:
        while not ended.wait(EVERY_S):
            found.most = max(found.most, look() - first)

    thread = (
        Thread(target=watch, args=(look,), daemon=True, name="held-memory")
        if look is not None
        else None
    )
    if thread is not None:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        if thread is not None:
            thread.join()
        found.grown = max(_largest() - before, 0)
        if look is None:
            found.most = found.grown


def _in_use() -> Callable[[], int] | None:
    """A function that returns the bytes that are allocated and not freed; None where there is no
    such source.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    ask.restype = _Mallinfo2
    ask.argtypes = ()

    def look() -> int:
        found = ask()
        return int(found.uordblks + found.hblkhd)

    return look


def _largest() -> int:
    """Bytes: the most that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
