"""Process of one spawned rank that times every collective and sends the seconds back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

ELEMENT_BYTES: Final = 4
_LONG_S: Final = {"cpu": 2e-2, "cuda": 2e-3}
"""Seconds of one timing, by type of device. The scheduler of a processor wakes ranks at different
times, so short timings vary.
"""
# torch 2.13 renamed both; older releases have the old names only.
_ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_MAX_INNER: Final = 50
_UNSUPPORTED: Final = re.compile(r"\b(Backend|ProcessGroup) ?\w+ does not support\b")
"""Message of torch.distributed where a backend lacks a collective: "Backend gloo does not support
alltoall_base".
"""


def run_rank(
    rank: int,
    num_devices: int,
    device: str,
    meeting: str,
    kinds: tuple[str, ...],
    sizes: tuple[int, ...],
    repetitions: int,
    timeout_s: float,
    threads: int,
    messages: Any,
) -> None:
    """Time collectives of several sizes on one rank over gloo or NCCL, and send the results.

    Args:
        kinds, sizes: collectives, and bytes of the full buffer.
        meeting: path of a file that does not exist yet; the ranks meet there.
        timeout_s: of each collective.
        messages: a queue for (rank, ``point`` | ``unsupported`` | ``done`` | ``error``, content).
    """
    try:
        torch.set_num_threads(max(threads, 1))
        if device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=num_devices,
            timeout=timedelta(seconds=timeout_s),
        )
        for kind in kinds:
            message = unsupported_message(
                _make_collective(
                    kind, min(sizes), num_devices=num_devices, rank=rank, device=device
                )
            )
            if message:
                messages.put((rank, "unsupported", (kind, message)))
                continue
            for size in sizes:
                collective = _make_collective(
                    kind, size, num_devices=num_devices, rank=rank, device=device
                )
                messages.put(
                    (
                        rank,
                        "point",
                        (
                            kind,
                            size,
                            _median_seconds(collective, device=device, repetitions=repetitions),
                        ),
                    )
                )
        messages.put((rank, "done", None))
        dist.destroy_process_group()
    # The parent must hear of every error, or it would wait until the other ranks time out.
    except Exception as error:
        messages.put((rank, "error", _first_line(error)))
        raise SystemExit(1) from error


def unsupported_message(collective: Callable[[], Any]) -> str:
    """Run a collective once; the backend's message if it lacks the collective, else empty.

    Any other error is raised, since it is an error of this machine: "operation not supported" of a
    device is one.
    """
    try:
        collective()
    except RuntimeError as error:  # one that says "not implemented" by its class is one of these
        if not (isinstance(error, NotImplementedError) or _UNSUPPORTED.search(str(error))):
            raise
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    """First line of an error's message, in at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _make_collective(
    kind: str, size: int, *, num_devices: int, rank: int, device: str
) -> Callable[[], Any]:
    """Make a function that runs the collective `kind` on a full buffer of about `size` bytes."""
    part = max(size // ELEMENT_BYTES // num_devices, 1)
    full = torch.ones(part * num_devices, device=device)
    shard = torch.ones(part, device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(full)
    if kind == "all_gather":
        return lambda: _ALL_GATHER(full, shard)
    if kind == "reduce_scatter":
        return lambda: _REDUCE_SCATTER(shard, full)
    if kind == "all_to_all":
        received = torch.empty_like(full)
        return lambda: dist.all_to_all_single(received, full)
    if kind == "broadcast":
        return lambda: dist.broadcast(full, src=0)
    # A ring of sends: every rank sends to the next and receives from the one before.
    received = torch.empty_like(full)
    exchange = [
        dist.P2POp(dist.isend, full, (rank + 1) % num_devices),
        dist.P2POp(dist.irecv, received, (rank - 1) % num_devices),
    ]

    def send() -> None:
        """Send the full buffer to the next rank, and receive the previous rank's."""
        for work in dist.batch_isend_irecv(exchange):
            work.wait()

    return send


def _median_seconds(collective: Callable[[], Any], *, device: str, repetitions: int) -> float:
    """Median seconds of a collective, over timings of many calls in a row after a barrier."""

    def span(times: int) -> float:
        """Seconds of `times` calls of the collective in a row, after a barrier."""
        dist.barrier()
        _synchronise(device)
        start = time.perf_counter()
        for _ in range(times):
            collective()
        _synchronise(device)
        return time.perf_counter() - start

    span(2)
    # All ranks repeat the collective as often as the slowest rank does.
    once = torch.tensor([span(1)], device=device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    inner = min(max(int(_LONG_S[device] / max(float(once), 1e-7)), 1), _MAX_INNER)
    return median(span(inner) / inner for _ in range(repetitions))


def _synchronise(device: str) -> None:
    """Wait until a CUDA device is idle; do nothing on a processor."""
    if device == "cuda":
        torch.cuda.synchronize()
