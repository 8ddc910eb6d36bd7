"""Memory-mapped arrays on disk, as ``numpy.save`` writes them.

Needs no PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from typing import Final

import numpy as np

from shardwright.errors import DataError

UNREADABLE: Final = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    SyntaxError,
    TokenError,
    OverflowError,
    MemoryError,
    RecursionError,
    EOFError,
)
"""Errors that numpy raises for a damaged file: it reads the header as Python."""


def map_array(path: Path, *, what: str, hint: str) -> np.ndarray:
    """Memory-map a ``.npy`` file's array, read-only; DataError if it is missing or damaged.

    Args:
        what: what the file should contain, for errors.
        hint: how to make such a file, for errors.

    Raises:
        DataError: no file, a damaged one, or an archive.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint=hint)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} is not a whole file of {what}: {reason}", hint=hint) from None
    if not isinstance(array, np.ndarray):
        raise DataError(
            f"{path} is an archive, not a file of {what}", hint="write it with numpy.save"
        )
    return array
