"""The ranks as processes in their hosts, told what to do together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.emulated.hosts import FAR, Hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Processes by rank."""

    processes: tuple[subprocess.Popen[str], ...]

    def tell(self, commands: Sequence[Mapping[str, Any]]) -> None:
        """Give every rank its command."""
        for process, command in zip(self.processes, commands, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()

    def hear(self) -> list[Any]:
        """One answer of every rank.

        Raises:
            RuntimeError: a rank has ended.
        """
        found = []
        for rank, process in enumerate(self.processes):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"rank {rank} ended (its error stands above)")
            found.append(json.loads(line))
        return found


@contextmanager
def ranks_up(hosts: Hosts) -> Iterator[Ranks]:
    """One rank a host for as long as the context lasts."""
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": FAR,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    processes = tuple(
        subprocess.Popen(
            (
                *(
                    "ip",
                    "netns",
                    "exec",
                    hosts.name(rank),
                    sys.executable,
                    "-m",
                    "benchmarks.emulated.rank",
                ),
                *(str(rank), f"{hosts.address(0)}:29500"),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(hosts.count)
    )
    try:
        yield Ranks(processes=processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
