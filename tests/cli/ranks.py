"""Ranks that run a command as those that `torchrun` starts do, each a process that is forked."""

from __future__ import annotations

import os
import socket
from contextlib import redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path

from shardwright.cli.main import run
from tests.execute.started import started


def _work(rank: int, ranks: int, port: int, words: list[str], folder: str) -> None:
    here = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in here.items()})
    with Path(folder, f"rank{rank}").open("w", encoding="utf-8") as out, redirect_stdout(out):
        code = run(words)
    raise SystemExit(code)


def start(words: list[str], *, ranks: int, folder: Path) -> list[BaseProcess]:
    """Ranks as processes; what each writes to its output is a file of the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return started(_work, ranks=ranks, arguments=(ranks, port, words, str(folder)))
