"""Lock that gives a folder of checkpoints to one run at a time.

Needs no PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.errors import OutputError, UsageError

LOCK = ".lock"


@contextmanager
def locked_folder(root: Path) -> Iterator[None]:
    """Context manager that creates a checkpoint folder and locks it against other runs.

    The lock ends with the process in any case.

    Raises:
        OutputError: the folder cannot be created or written to. UsageError: another run has locked
        it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(
            f"{root}: {error.strerror}", hint="--checkpoints takes a folder that can be written"
        ) from None
    try:
        _lock(file, root)
        yield
    finally:
        os.close(file)


def _lock(file: int, root: Path) -> None:
    """Lock a file without waiting: UsageError if another run has it; nothing without file locks."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{root}: another run writes its checkpoints there", hint="another --checkpoints folder"
        ) from None
    except OSError:  # a file system without locks
        return
