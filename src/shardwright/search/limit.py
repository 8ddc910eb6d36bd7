"""When a search stops early: after seconds, or where an earlier one stopped, so that its answer can be made again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

STOP: Final = threading.Event()
"""Set by who wants every search of this process to end at its next look at the clock."""


@dataclass(slots=True)
class Limit:
    """The looks of a search at the clock.

    Between two looks a search does the same work whatever the clock says, so the number of the look at which it stopped says all about what
    it had seen: a search over the same space with `stop_at` of that number ends with the same answer, on a faster or slower machine.

    Args:
        deadline_s: on `time.monotonic`. stop_at: the look to stop at instead, 0 = go by the clock. looks: so far.
        stopped_at: the look at which the limit cut in, 0 = it did not; it stays.
    """

    deadline_s: float = float("inf")
    stop_at: int = 0
    looks: int = 0
    stopped_at: int = 0

    def passed(self) -> bool:
        """Look at the clock: whether the limit has cut in."""
        if not self.stopped_at:
            self.looks += 1
            if self.looks == self.stop_at if self.stop_at else STOP.is_set() or time.monotonic() > self.deadline_s:
                self.stopped_at = self.looks
        return self.stopped_at > 0


def limit_of(seconds: float, *, stop_at: int | None = None) -> Limit:
    """A limit of `seconds` from now; with `stop_at` the one that repeats a search (0 = which was not stopped)."""
    return Limit(deadline_s=time.monotonic() + seconds) if stop_at is None else Limit(stop_at=stop_at)
