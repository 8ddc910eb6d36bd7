"""Checkpoints of a run with several ranks: all ranks take part, and an error reaches all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from shardwright.errors import DataError
from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint
from shardwright.execute.checkpoints.read_checkpoint import SavedCheckpoint, read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.checkpoints.write_checkpoint import (
    DeviceFiles,
    begin_checkpoint,
    finish_checkpoint,
    write_device,
)
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
)

T = TypeVar("T")


def gather_results(make: Callable[[], T]) -> list[T]:
    """Call `make` on every rank, and return all results by rank; all ranks must call it.

    No rank continues before all have their results.

    Raises:
        DataError: `make` raised it, or could not read or write, on some rank: the error of the
        first rank that failed, on all ranks.
    """
    outcome: Any
    try:
        outcome = (True, make())
    except DataError as error:
        outcome = (False, (error.message, error.hint))
    except (
        OSError,
        RuntimeError,
    ) as error:  # torch's writer of archives raises the latter where a disk is full
        where = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
        outcome = (
            False,
            (f"{where}{error}", "see that the folder of checkpoints has room and can be written"),
        )
    outcomes: list[Any] = [outcome]
    if dist.is_initialized():
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome)
    for succeeded, result in outcomes:
        if not succeeded:
            raise DataError(result[0], hint=result[1])
    return [cast(T, result) for _, result in outcomes]


def save_rank(
    members: Mapping[int, DeviceState], training: PreparedTraining, root: Path, *, rank: int
) -> Path:
    """Save a checkpoint from all ranks: files of each rank's devices, then the manifest by rank 0.

    Raises:
        DataError: a file could not be written, on any rank.
    """
    step = next(iter(members.values())).steps
    return save_files(
        lambda folder: [write_device(state, training, folder) for state in members.values()],
        training,
        root,
        step=step,
        rank=rank,
    )


def save_files(
    write: Callable[[Path], list[DeviceFiles]],
    training: PreparedTraining,
    root: Path,
    *,
    step: int,
    rank: int,
) -> Path:
    """Save a checkpoint: `write` puts each rank's files in a new folder; returns the final folder.

    Raises:
        DataError: a file could not be written, on any rank.
    """
    folder = cast(
        Path, gather_results(lambda: begin_checkpoint(root, step) if rank == 0 else None)[0]
    )
    written = gather_results(lambda: write(folder))
    all_files = [device_files for of_rank in written for device_files in of_rank]
    return cast(
        Path,
        gather_results(
            lambda: finish_checkpoint(folder, all_files, training, step=step) if rank == 0 else None
        )[0],
    )


def resume_or_begin(
    devices: tuple[int, ...],
    training: PreparedTraining,
    root: Path,
    *,
    source: Source,
    rank: int,
    ranks: int,
) -> dict[int, DeviceState]:
    """Create the states of a rank's devices, from the newest checkpoint if there is one.

    Ranks divide the verification of its files.

    Raises:
        DataError: the newest checkpoint is not usable; raised on all ranks.
    """
    newest = gather_results(lambda: newest_checkpoint(root) if rank == 0 else None)[0]
    if newest is None:
        return {d: create_device_state(d, training, source=source) for d in devices}
    verified: list[SavedCheckpoint] = []
    gather_results(
        lambda: verified.append(
            read_checkpoint(
                newest, model=training.work.model, settings=training.settings, share=(rank, ranks)
            )
        )
    )
    return {d: resume_device(d, training, verified[0], source=source) for d in devices}
