"""Rules for when a run saves a checkpoint, and for the removal of old ones.

Needs no PyTorch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from shardwright.execute.checkpoints.find_finished_checkpoints import finished_checkpoints


def keep_last(root: Path, count: int) -> tuple[Path, ...]:
    """Remove all finished checkpoints but the newest `count` (0 = keep all); returns the removed.

    A folder is renamed before its files are removed, so that a folder with a checkpoint's name is
    complete.
    """
    removed = finished_checkpoints(root)[:-count] if count else ()
    for folder in removed:
        renamed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)
    return removed


def is_due(step: int, *, steps: int, every: int, stopped: bool) -> bool:
    """True if saving or evaluating is due: the last step, each `every`-th (0: none), or a stop."""
    return stopped or step == steps or bool(every and step % every == 0)
