"""One rank of a run: what ``torchrun`` (or a spawned process) executes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.checkpoint_ranks import begun_rank, save_rank
from shardwright.execute.device import Batch
from shardwright.execute.distributed import Network
from shardwright.execute.parameters import Source
from shardwright.execute.recorder import Recorder
from shardwright.execute.train import StepReport, Training, train_rank

Batches = Callable[[int], Batch]
"""The batch of a step, counted from 0."""


@contextmanager
def process_group(*, timeout_s: float = 300.0, alone: bool = False) -> Iterator[tuple[int, int]]:
    """(rank, ranks) of a process group over gloo: one that runs already, or that of torchrun's environment.

    Args:
        alone: without such an environment this process is the only rank, and needs no group.

    Raises:
        StrategyError: run.world if the environment has no RANK and WORLD_SIZE.
    """
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if alone and "WORLD_SIZE" not in os.environ:
        yield 0, 1
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
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> list[StepReport]:
    """Train this rank's device until step `steps`, from the newest checkpoint if there is one. All ranks call it.

    Args:
        source: first values of parameters. checkpoints: folder of this run, seen by all ranks. every: steps between checkpoints; 0 = one at
            the end. report: is told of every step. stop: asked in every step; once it is true on a rank, all stop after that step, and
            save. recorder: has the last step.

    Raises:
        StrategyError: run.world; errors of `Network`. DataError: the newest checkpoint is not usable.
    """
    with process_group(timeout_s=timeout_s, alone=len(known.devices) == 1) as (rank, ranks):
        placed = ranks_of(known, ranks=ranks)
        own = tuple(d for d, r in placed.items() if r == rank)
        members = begun_rank(own, known, checkpoints, source=source, rank=rank, ranks=ranks)
        done = next(iter(members.values())).steps
        reports = []
        with Network(placed, timeout_s=timeout_s, on=known.on) as network:
            for one in train_rank(network, members, known, (batches(step) for step in range(done, steps)), stop=stop, recorder=recorder):
                reports.append(one)
                if report is not None:
                    report(one)
                if checkpoints is not None and (one.stopped or one.step == steps or (every and one.step % every == 0)):
                    save_rank(members, known, checkpoints, rank=rank)
                if one.stopped:
                    break
    return reports
