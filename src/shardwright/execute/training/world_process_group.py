"""Process group of the ranks that train: torchrun's, a running one, or this process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch.distributed as dist

from shardwright.errors import StrategyError


@contextmanager
def process_group(
    *, timeout_s: float = 300.0, alone: bool = False, meets: bool = False, accelerated: bool = False
) -> Iterator[tuple[int, int]]:
    """Context manager in torchrun's group: (rank, ranks), or (0, 1) if `alone` without torchrun.

    A running group is used as it is; otherwise the environment of torchrun names the group.

    Args:
        alone: without such an environment this process is the only rank, without a group unless
            `meets` is true.
        accelerated: tensors of a GPU use NCCL.

    Raises:
        StrategyError: run.world if the environment has no RANK and WORLD_SIZE; run.meet if the
        ranks do not connect.
    """
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    backend, timeout = "cpu:gloo,cuda:nccl" if accelerated else "gloo", timedelta(seconds=timeout_s)
    if alone and "WORLD_SIZE" not in os.environ:
        with _single_process_group(backend, timeout) if meets else nullcontext():
            yield 0, 1
        return
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise StrategyError(
            "RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set",
            hint="start with torchrun",
            rule="run.world",
        )
    try:
        dist.init_process_group(backend, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        port_is_used = "EADDRINUSE" in str(error)
        raise StrategyError(
            f"rank {os.environ['RANK']}: ranks do not meet at {place}:"
            f" {'that port is used' if port_is_used else str(error).splitlines()[0][:300]}",
            hint=(
                "another MASTER_PORT"
                if port_is_used
                else "all ranks need the same MASTER_ADDR and MASTER_PORT, of the first rank's host"
            ),
            rule="run.meet",
        ) from error
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


@contextmanager
def _single_process_group(backend: str, timeout: timedelta) -> Iterator[None]:
    """Context manager with a process group of this process alone, which needs no port."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()
