"""Checkpoint folders of a run, and the newest of them.

Needs no PyTorch, whose checkpoint module takes a second to load.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MANIFEST = "manifest.json"
_NAMED: Final = re.compile(r"step-\d+")


def newest_checkpoint(root: Path) -> Path | None:
    """The folder of the newest finished checkpoint; None if there is none.

    A process that died while it replaced a checkpoint by a new one of the same step may have left
    only the old one.
    """
    folder_by_name = {p.name: p for p in finished_checkpoints(root)}
    for path in root.glob(".step-*.before"):
        if _NAMED.fullmatch(name := path.name[1 : -len(".before")]):
            folder_by_name.setdefault(name, path)
    return folder_by_name[max(folder_by_name, key=step_of)] if folder_by_name else None


def finished_checkpoints(root: Path) -> tuple[Path, ...]:
    """Folders of finished checkpoints, under their final names, oldest first."""
    return tuple(
        sorted(
            (
                p
                for p in root.glob("step-*")
                if _NAMED.fullmatch(p.name) and (p / MANIFEST).exists()
            ),
            key=lambda p: step_of(p.name),
        )
    )


def step_of(name: str) -> int:
    """The step in a checkpoint folder's name, ``step-00000012`` or ``.step-00000012.before``."""
    return int(name.removesuffix(".before").rpartition("-")[2])
