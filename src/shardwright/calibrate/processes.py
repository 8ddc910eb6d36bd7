"""How processes of a measurement are started."""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

PRELOADED: Final = "shardwright.calibrate.collective_rank"


def context() -> Any:
    """Processes that are forked from one of their own that has loaded PyTorch, once for all; where
    there is none, each loads it.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    found = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        found.set_forkserver_preload([PRELOADED])
    return found
