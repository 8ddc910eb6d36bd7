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
    Saved,
    begin,
    finish,
    read,
    resumed,
    write_device,
)
from shardwright.execute.checkpoints.checkpoint_folders import latest
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.training.training_loop import Member, Training, member

T = TypeVar("T")


def together(make: Callable[[], T]) -> list[T]:
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


def save_rank(members: Mapping[int, Member], known: Training, root: Path, *, rank: int) -> Path:
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
    folder = cast(Path, together(lambda: begin(root, step) if rank == 0 else None)[0])
    written = together(lambda: write(folder))
    everything = [one for own in written for one in own]
    return cast(
        Path,
        together(lambda: finish(folder, everything, known, step=step) if rank == 0 else None)[0],
    )


def begun_rank(
    devices: tuple[int, ...], known: Training, root: Path, *, source: Source, rank: int, ranks: int
) -> dict[int, Member]:
    """The devices of a rank, from the newest checkpoint if there is one. Ranks divide the
    verification of its files.

    Raises:
        DataError: the newest checkpoint is not usable: on all ranks, if one finds it.
    """
    newest = together(lambda: latest(root) if rank == 0 else None)[0]
    if newest is None:
        return {d: member(d, known, source=source) for d in devices}
    own: list[Saved] = []
    together(
        lambda: own.append(
            read(newest, model=known.work.model, settings=known.settings, share=(rank, ranks))
        )
    )
    return {d: resumed(d, known, own[0], source=source) for d in devices}
