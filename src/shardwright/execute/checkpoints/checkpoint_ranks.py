"""Checkpoints of a run of several ranks: every step is taken by all, and what fails on one rank is
told to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from shardwright.errors import DataError
from shardwright.execute.checkpoints.checkpoint import (
    DeviceFiles,
    SavedCheckpoint,
    begin_checkpoint,
    finish_checkpoint,
    read_checkpoint,
    resumed_device,
    write_device,
)
from shardwright.execute.checkpoints.checkpoint_folders import newest_checkpoint
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.training.training_loop import DeviceState, Training, device_state

T = TypeVar("T")


def gather_results(make: Callable[[], T]) -> list[T]:
    """The result of `make` on every rank, by rank. All ranks call it, and none continues before all
    have their results.

    Raises:
        DataError: `make` raised one, or could not read or write, on any rank: the same on all
        ranks, of the first rank that failed.
    """
    mine: Any
    try:
        mine = (True, make())
    except DataError as error:
        mine = (False, (error.message, error.hint))
    except (
        OSError,
        RuntimeError,
    ) as error:  # torch's writer of archives raises the latter where a disk is full
        where = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
        mine = (
            False,
            (f"{where}{error}", "see that the folder of checkpoints has room and can be written"),
        )
    found: list[Any] = [mine]
    if dist.is_initialized():
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
    for good, what in found:
        if not good:
            raise DataError(what[0], hint=what[1])
    return [cast(T, what) for _, what in found]


def save_rank(
    members: Mapping[int, DeviceState], known: Training, root: Path, *, rank: int
) -> Path:
    """Save a checkpoint from all ranks: each its devices, then rank 0 the manifest once all files
    are on disk.

    Raises:
        DataError: a file could not be written, on any rank.
    """
    step = next(iter(members.values())).steps
    return save_files(
        lambda folder: [write_device(own, known, folder) for own in members.values()],
        known,
        root,
        step=step,
        rank=rank,
    )


def save_files(
    write: Callable[[Path], list[DeviceFiles]], known: Training, root: Path, *, step: int, rank: int
) -> Path:
    """Save a checkpoint of a step from all ranks, each of which does `write` into the folder that
    it is given.

    Raises:
        DataError: a file could not be written, on any rank.
    """
    folder = cast(
        Path, gather_results(lambda: begin_checkpoint(root, step) if rank == 0 else None)[0]
    )
    written = gather_results(lambda: write(folder))
    everything = [one for own in written for one in own]
    return cast(
        Path,
        gather_results(
            lambda: finish_checkpoint(folder, everything, known, step=step) if rank == 0 else None
        )[0],
    )


def resume_or_begin(
    devices: tuple[int, ...], known: Training, root: Path, *, source: Source, rank: int, ranks: int
) -> dict[int, DeviceState]:
    """The devices of a rank, from the newest checkpoint if there is one. Ranks divide the
    verification of its files.

    Raises:
        DataError: the newest checkpoint is not usable: on all ranks, if one finds it.
    """
    newest = gather_results(lambda: newest_checkpoint(root) if rank == 0 else None)[0]
    if newest is None:
        return {d: device_state(d, known, source=source) for d in devices}
    own: list[SavedCheckpoint] = []
    gather_results(
        lambda: own.append(
            read_checkpoint(
                newest, model=known.work.model, settings=known.settings, share=(rank, ranks)
            )
        )
    )
    return {d: resumed_device(d, known, own[0], source=source) for d in devices}
