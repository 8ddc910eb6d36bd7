"""Measurement of torch.distributed collectives over spawned ranks: NCCL on GPUs, gloo on CPUs.

Every wait has a timeout.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from shardwright.calibrate.fork_server_with_torch import process_context
from shardwright.calibrate.time_collectives_on_rank import run_rank
from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import KIB

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
_SIZES: Final = {
    "cpu": tuple(KIB * 4**i for i in range(8)),
    "cuda": tuple(2 * KIB * 4**i for i in range(10)),
}
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoints:
    """Collectives measured over one group of devices.

    Args:
        points: (kind, (bytes of the full buffer, seconds of the slowest rank) points).
        unsupported: (kind, message of the backend that lacks it).
    """

    num_devices: int
    points: tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
    unsupported: tuple[tuple[str, str], ...]


def group_sizes(num_devices: int) -> tuple[int, ...]:
    """Numbers of ranks to measure: 2, 4, 8, .. below `num_devices`, and `num_devices`; () for 1."""
    smaller = [2**i for i in range(1, num_devices.bit_length()) if 2**i < num_devices]
    return (*smaller, num_devices) if num_devices > 1 else ()


def collective_sizes(device: str, *, tiny: bool = False) -> tuple[int, ...]:
    """Bytes of the full buffer to measure on ``cpu`` or ``cuda``.

    1 KiB to 16 MiB on a processor, 2 KiB to 512 MiB on GPUs.
    """
    return (4 * KIB, 64 * KIB) if tiny else _SIZES[device]


def measure_collectives(
    num_devices: int,
    *,
    device: str,
    sizes: tuple[int, ...],
    kinds: tuple[str, ...] = KINDS,
    repetitions: int = 5,
    timeout_s: float = 60.0,
    threads: int = 1,
    step: Callable[[], None] = lambda: None,
    target: Callable[..., None] = run_rank,
) -> CollectivePoints:
    """Time collectives over new rank processes; return the slowest rank's seconds by kind and size.

    Args:
        timeout_s: of each collective, and of each wait for a rank's next message.
        step: called once a point.
        target: function that each rank runs.

    Raises:
        DataError: a rank died, failed, or sent nothing for `timeout_s`; the other ranks are ended.
    """
    made = process_context()
    messages: Any = made.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "ranks")
        ranks: list[BaseProcess] = [
            made.Process(
                target=target,
                args=(
                    rank,
                    num_devices,
                    device,
                    meeting,
                    kinds,
                    sizes,
                    repetitions,
                    timeout_s,
                    threads,
                    messages,
                ),
                daemon=True,
            )
            for rank in range(num_devices)
        ]
        try:
            for process in ranks:
                process.start()
            return _collect_messages(messages, ranks, timeout_s=timeout_s, step=step)
        finally:
            _end_processes(ranks)
            messages.close()
            messages.join_thread()


def _collect_messages(
    messages: Any, ranks: list[BaseProcess], *, timeout_s: float, step: Callable[[], None]
) -> CollectivePoints:
    """Receive messages until all ranks are done; return the slowest rank's seconds by kind."""
    slowest: dict[str, dict[int, float]] = {}
    unsupported: dict[str, str] = {}
    waiting = set(range(len(ranks)))
    while waiting:
        rank, word, content = _next_message(messages, ranks, waiting, timeout_s=timeout_s)
        if word == "error":
            raise DataError(
                f"rank {rank} of {len(ranks)} failed: {content}",
                hint="fewer --ranks, or see whether its device is free",
            )
        if word == "done":
            waiting.discard(rank)
        elif word == "unsupported":
            unsupported[content[0]] = content[1]
        else:
            kind, size, seconds = content
            times = slowest.setdefault(kind, {})
            times[size] = max(times.get(size, 0.0), seconds)
            if rank == 0:
                step()
    return CollectivePoints(
        num_devices=len(ranks),
        points=tuple(
            (kind, tuple(sorted(times.items())))
            for kind, times in slowest.items()
            if kind not in unsupported
        ),
        unsupported=tuple(unsupported.items()),
    )


def _next_message(
    messages: Any, ranks: list[BaseProcess], waiting: set[int], *, timeout_s: float
) -> tuple[int, str, Any]:
    """Wait for the next (rank, kind, content) message; DataError if a rank died or none sends."""
    deadline = time.monotonic() + timeout_s
    while True:
        dead = [rank for rank in sorted(waiting) if ranks[rank].exitcode is not None]
        try:
            message: tuple[int, str, Any] = messages.get(timeout=_POLL_S)
            return message
        except queue.Empty:
            pass
        if dead:
            code = ranks[dead[0]].exitcode
            raise DataError(
                f"rank {dead[0]} of {len(ranks)} died with exit code {code}",
                hint="out of memory? try fewer --ranks",
            )
        if time.monotonic() > deadline:
            raise DataError(
                f"no rank of {len(ranks)} said anything for {timeout_s:g} s",
                hint="a larger --timeout, or fewer --ranks",
            )


def _end_processes(ranks: list[BaseProcess]) -> None:
    """End the processes: join, then terminate, then kill."""
    for process in ranks:
        process.join(timeout=1.0)
        if process.is_alive():
            process.terminate()
            process.join(timeout=5.0)
        if process.is_alive():
            process.kill()
            process.join(timeout=5.0)
