"""Start of the processes of a measurement."""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

PRELOADED: Final = "shardwright.calibrate.collective_rank"


def process_context() -> Any:
    """A multiprocessing context whose processes load PyTorch once.

    They are forked from a server that has loaded it; where there is no such server, each process
    loads it.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    started = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        started.set_forkserver_preload([PRELOADED])
    return started
