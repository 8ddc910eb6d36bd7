"""One rank of a run: what ``torchrun`` (or a spawned process) executes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.checkpoint import begin, finish, latest, read, resumed, write_device
from shardwright.execute.device import Batch
from shardwright.execute.distributed import Network
from shardwright.execute.parameters import Source
from shardwright.execute.train import Member, StepReport, Training, member, train_rank

Batches = Callable[[int], Batch]
"""The batch of a step, counted from 0."""


@contextmanager
def process_group(*, timeout_s: float = 300.0) -> Iterator[tuple[int, int]]:
    """(rank, ranks) of a process group over gloo: one that runs already, or that of torchrun's environment.

    Raises:
        StrategyError: run.world if the environment has no RANK and WORLD_SIZE.
    """
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise StrategyError("RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set", hint="start with torchrun", rule="run.world")
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def ranks_of(known: Training, *, ranks: int) -> Mapping[int, int]:
    """The rank of every device: one rank a device, in order.

    Raises:
        StrategyError: run.world if the numbers differ.
    """
    if ranks != len(known.devices):
        raise StrategyError(
            f"the plan has {len(known.devices)} devices, {ranks} ranks run", hint=f"start {len(known.devices)} ranks", rule="run.world"
        )
    return {device: rank for rank, device in enumerate(known.devices)}


def run_rank(
    known: Training,
    *,
    source: Source,
    batches: Batches,
    steps: int,
    checkpoints: Path | None = None,
    every: int = 0,
    timeout_s: float = 300.0,
    report: Callable[[StepReport], None] | None = None,
) -> list[StepReport]:
    """Train this rank's device until step `steps`, from the newest checkpoint if there is one. All ranks call it.

    Args:
        source: first values of parameters. checkpoints: folder of this run, seen by all ranks. every: steps between checkpoints; 0 = one at
            the end. report: is told of every step.

    Raises:
        StrategyError: run.world; errors of `Network`. DataError: the newest checkpoint is not usable.
    """
    with process_group(timeout_s=timeout_s) as (rank, ranks):
        placed = ranks_of(known, ranks=ranks)
        members = {d: _begun(d, known, source, checkpoints) for d, r in placed.items() if r == rank}
        done = next(iter(members.values())).steps
        reports = []
        with Network(placed, timeout_s=timeout_s, on=known.on) as network:
            for one in train_rank(network, members, known, (batches(step) for step in range(done, steps))):
                reports.append(one)
                if report is not None:
                    report(one)
                if checkpoints is not None and (one.step == steps or (every and one.step % every == 0)):
                    save_rank(members, known, checkpoints, rank=rank)
    return reports


def _begun(device: int, known: Training, source: Source, checkpoints: Path | None) -> Member:
    newest = latest(checkpoints) if checkpoints is not None else None
    if newest is None:
        return member(device, known, source=source)
    return resumed(device, known, read(newest, model=known.work.model), source=source)


def save_rank(members: Mapping[int, Member], known: Training, root: Path, *, rank: int) -> None:
    """Save a checkpoint from all ranks: each its devices, then rank 0 the manifest once all files are on disk."""
    step = next(iter(members.values())).steps
    folder = [begin(root, step) if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path = folder[0]
    assert path is not None, "rank 0 made it"
    written = [write_device(own, known, path) for own in members.values()]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, written)
    if rank == 0:
        finish(path, [entry for own in found for entry in own], known, step=step)
    dist.barrier()
