"""Folders of checkpoints: which is the newest. Needs no PyTorch, whose checkpoints take a second to
load.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MANIFEST = "manifest.json"
_NAMED: Final = re.compile(r"step-\d+")


def newest_checkpoint(root: Path) -> Path | None:
    """The newest finished checkpoint; None if there is none.

    A process that died while it replaced a checkpoint by one of the same step may have left only
    the one that was to be replaced.
    """
    found = {p.name: p for p in finished_checkpoints(root)}
    for path in root.glob(".step-*.before"):
        if _NAMED.fullmatch(name := path.name[1 : -len(".before")]):
            found.setdefault(name, path)
    return found[max(found, key=step_of)] if found else None


def finished_checkpoints(root: Path) -> tuple[Path, ...]:
    """All finished checkpoints under their own names, oldest first."""
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
    """The step of a checkpoint by its folder's name, ``step-00000012`` or
    ``.step-00000012.before``.
    """
    return int(name.removesuffix(".before").rpartition("-")[2])
