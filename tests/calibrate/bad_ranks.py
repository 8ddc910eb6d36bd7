"""Ranks that end, or say nothing. Their processes import this file alone."""

import os
import time
from typing import Any


def dies(rank: int, *_: Any) -> None:
    """Rank 1 ends at once."""
    if rank == 1:
        os._exit(7)
    time.sleep(60)


def hangs(rank: int, *_: Any) -> None:
    """No rank says anything."""
    time.sleep(60)
