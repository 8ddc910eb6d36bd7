"""Ranks as processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from tests.tiers import in_proof

LONGEST_S = 480


def serve() -> None:
    """Start the server that ranks are forked from, if it does not run: the first to start it says
    what it has imported."""
    mp.get_context("forkserver").set_forkserver_preload(
        [
            *(f"tests.execute.{name}_ranks" for name in ("plan", "native", "request", "ring")),
            "tests.cli.ranks",
            "shardwright.cli.verbs.run",
            "shardwright.cli.parsing.parse_with_typer",
            "shardwright.api.prove_or_train_plan",
        ]
    )
    forkserver.ensure_running()


def started(
    work: Callable[..., None], *, ranks: int, arguments: tuple[object, ...]
) -> list[BaseProcess]:
    """`work(rank, *arguments)` in a process a rank.

    They are forked from a server that has imported what they need, once for all. In a proof each is
    a Python of its own, with its own order of sets, as ranks of a launched run are.
    """
    context = mp.get_context("spawn" if in_proof() else "forkserver")
    if not in_proof():
        serve()
    processes: list[BaseProcess] = [
        context.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return processes


@contextmanager
def finished(
    processes: list[BaseProcess],
    folder: Path,
    *,
    meanwhile: Callable[[], object] | None = None,
    killed: int | None = None,
) -> Iterator[list[Any]]:
    """What each rank wrote to its file of the folder, once all have ended well.

    Args:
        meanwhile: runs while they do.
        killed: the rank that a signal ends.
    """
    try:
        if meanwhile is not None:
            meanwhile()
        for process in processes:
            process.join(LONGEST_S)
        assert [p.exitcode for p in processes] == [
            -signal.SIGKILL if rank == killed else 0 for rank in range(len(processes))
        ]
        yield [
            torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(len(processes))
        ]
    finally:
        for process in processes:
            process.kill()
