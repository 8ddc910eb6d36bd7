"""Checkpoints of a run that are kept. Needs no PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardwright.execute.checkpoints.checkpoint_folders import finished_checkpoints


def keep_last(root: Path, count: int) -> tuple[Path, ...]:
    """Remove all finished checkpoints but the newest `count` (0 = keep all); those that were
    removed, oldest first.

    A folder is renamed before its files go, so that what has a checkpoint's name is whole.
    """
    gone = finished_checkpoints(root)[:-count] if count else ()
    for folder in gone:
        going = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(going, ignore_errors=True)
        folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    return gone


def is_due(step: int, *, steps: int, every: int, stopped: bool) -> bool:
    """True after the last step, after a step at which the run is stopped, and after every `every`
    steps (0: after no others).
    """
    return stopped or step == steps or bool(every and step % every == 0)
