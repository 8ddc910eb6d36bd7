"""A web server in a process of its own, and questions of small size."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "cluster": "h100-sxm:8",
    "seq_len": 4096,
    "global_batch": 16,
}
"""Request whose plan is found at once."""
LONG: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": "h100-sxm:2048",
    "seq_len": 4096,
    "global_batch": 15360,
    "space": "exhaustive",
}
"""Request whose search takes long."""
BUSY_TICKS = 30
"""Hundredths of a second of a process that does more than begin."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server: its address and its process."""

    address: str
    process: int

    def searching(self) -> list[int]:
        """Processes of the server that search (Linux): they have used the CPU since their start."""
        parents, ticks = {}, {}
        for name in os.listdir("/proc"):
            try:
                text = Path("/proc", name, "stat").read_text() if name.isdigit() else ""
            except OSError:
                continue
            if text:
                fields = text.rsplit(")", 1)[1].split()
                parents[int(name)], ticks[int(name)] = int(fields[1]), int(fields[11])
        forks = {one for one, parent in parents.items() if parent == self.process}
        return [
            one for one, parent in parents.items() if parent in forks and ticks[one] > BUSY_TICKS
        ]


@contextmanager
def running_server(*options: str) -> Iterator[RunningServer]:
    """A server that runs while the context lasts."""
    words = ["web", "--port", "0", "--quiet", *options]
    with subprocess.Popen(
        [sys.executable, "-m", "shardwright", *words], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield RunningServer(server.stdout.readline().strip().rstrip("/"), server.pid)
        finally:
            server.terminate()
            server.wait(timeout=60)


def events_of(text: str) -> list[tuple[str, str]]:
    """(name, data) of each server-sent event in a text."""
    found = []
    for part in text.split("\n\n"):
        lines = part.split("\n")
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = "\n".join(line[len("data: ") :] for line in lines if line.startswith("data: "))
        found += [(name, data) for name in names]
    return found
