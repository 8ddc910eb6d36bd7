"""Multiprocessing context for the processes of a measurement."""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

PRELOADED: Final = "shardwright.calibrate.time_collectives_on_rank"


def process_context() -> Any:
    """Multiprocessing context whose processes inherit a loaded PyTorch (a fork server, else spawn).

    Where there is no fork server, each process loads PyTorch.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    started = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        started.set_forkserver_preload([PRELOADED])
    return started
