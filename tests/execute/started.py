"""Ranks as processes."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

import torch.multiprocessing as mp

from tests.tiers import in_proof


def serve() -> None:
    """Start the server that ranks are forked from, if it does not run: the first to start it says what it has imported."""
    mp.get_context("forkserver").set_forkserver_preload([f"tests.execute.{name}_ranks" for name in ("plan", "native", "request")])
    forkserver.ensure_running()


def started(work: Callable[..., None], *, ranks: int, arguments: tuple[object, ...]) -> list[BaseProcess]:
    """`work(rank, *arguments)` in a process a rank.

    They are forked from a server that has imported what they need, once for all. In a proof each is a Python of its own, with its own order
    of sets, as ranks of a launched run are.
    """
    context = mp.get_context("spawn" if in_proof() else "forkserver")
    if not in_proof():
        serve()
    processes: list[BaseProcess] = [context.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(ranks)]
    for process in processes:
        process.start()
    return processes
