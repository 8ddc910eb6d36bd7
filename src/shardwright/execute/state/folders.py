"""Folders of checkpoints: which is the newest. Needs no PyTorch, whose checkpoints take a second to load."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"


def latest(root: Path) -> Path | None:
    """The newest finished checkpoint; None if there is none.

    A process that died while it replaced a checkpoint by one of the same step may have left only the one that was to be replaced.
    """
    found = {p.name: p for p in root.glob("step-*") if (p / MANIFEST).exists()}
    for path in root.glob(".step-*.before"):
        found.setdefault(path.name[1 : -len(".before")], path)
    return found[max(found)] if found else None
