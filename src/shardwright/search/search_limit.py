"""The time limit of a search, the looks at the clock that repeat a stopped search, and the text
of its progress line.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from math import inf
from typing import Final

from shardwright.errors import OutOfTimeError
from shardwright.units import format_percent, format_seconds

STOP: Final = threading.Event()
"""Set by who wants every search of this process to end at its next look at the clock."""
PATIENCE: Final = 10
"""How many times as long as it was asked for, and at least FIRST_PLAN_S, a search without any plan
yet looks on for its first."""
FIRST_PLAN_S: Final = 60.0


@dataclass(slots=True)
class Limit:
    """The time limit of a search, and its looks at the clock.

    Between two looks a search does the same work whatever the clock says, so the number of the look
    at which it stopped says all about what it had seen: a search over the same space with `stop_at`
    of that number ends with the same answer, on a faster or slower machine.

    Args:
        deadline_s: on `time.monotonic`.
        given_up_s: on the same, when a search without any plan ends too.
        stop_at: the look to stop at instead, 0 = go by the clock.
        most_looks: the look at which it cuts in whatever the clock says, 0 = none.
        looks: so far.
        stopped_at: the look at which the limit cut in, 0 = it did not; it stays.
        waited: it cut in before there was a plan, and the search went on to the first.
    """

    deadline_s: float = inf
    given_up_s: float = inf
    stop_at: int = 0
    most_looks: int = 0
    looks: int = 0
    stopped_at: int = 0
    waited: bool = False

    def passed(self) -> bool:
        """Look at the clock; True if the limit has passed."""
        if not self.stopped_at:
            self.looks += 1
            if self.looks == self.stop_at if self.stop_at else self._is_due():
                self.stopped_at = self.looks
        return self.stopped_at > 0

    def _is_due(self) -> bool:
        return self.looks == self.most_looks or STOP.is_set() or time.monotonic() > self.deadline_s

    def ends(self, *, found: bool) -> bool:
        """Look at the clock; True if the search ends here. Past the limit it goes on until
        something is `found`, as an answer needs a plan.

        Raises:
            OutOfTimeError: nothing was found, and the patience for a first plan has passed too.
        """
        if not self.passed():
            return False
        if found:
            return True
        self.waited = True
        if not self.stop_at and time.monotonic() > self.given_up_s:
            raise out_of_time()
        return False

    @property
    def left_s(self) -> float:
        """Seconds until the limit; inf where there is none."""
        return max(self.deadline_s - time.monotonic(), 0.0)


def out_of_time() -> OutOfTimeError:
    """The error of a search that was stopped before it had a plan."""
    return OutOfTimeError(
        "the time limit passed long ago and no plan that fits was found yet",
        hint=(
            "a longer --time-limit, a smaller space (--space standard, --pin), or more memory:"
            " nothing may fit"
        ),
    )


def limit_of(seconds: float, *, most_looks: int = 0, stop_at: int | None = None) -> Limit:
    """A limit of `seconds` from now and of `most_looks` at the clock (0 = any number); with
    `stop_at` the limit that repeats a stopped search (0 = one that was not stopped).
    """
    if stop_at is not None:
        return Limit(stop_at=stop_at)
    now = time.monotonic()
    return Limit(
        most_looks=most_looks,
        deadline_s=now + seconds,
        given_up_s=now + max(PATIENCE * seconds, FIRST_PLAN_S),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """The looks at the clock at which the parts of a search were stopped, to repeat it.

    0 = the part ended by itself.

    Args:
        search: of the search itself; of a mixed one the proof of its bound.
        grids: of the searches of grids that it begins with: one of a joint search, one of each pool
            of a mixed cluster.
        composed: of the part of a mixed search that finds plans.
    """

    search: int = 0
    grids: tuple[int, ...] = ()
    composed: int = 0


def progress_text(doing: str, *, best_s: float, lower_s: float, limit: Limit) -> str:
    """The text of a progress line: ``refine: best 54.3 s, gap 85.1 %, 2 s left``.

    Args:
        doing: the part of the search that runs.
        best_s: seconds of the best plan so far; inf = there is none.
        lower_s: a lower bound of all plans of the space; 0 = not known yet.
    """
    parts = []
    if best_s < inf:
        parts.append(f"best {format_seconds(best_s)}")
        parts += [f"gap {format_percent(max(1 - lower_s / best_s, 0.0))}"] if lower_s else []
    if limit.left_s < inf:
        parts.append(
            f"{limit.left_s:.0f} s left"
            if limit.left_s
            else "time is up"
            if parts
            else "time is up, on to the first plan"
        )
    return f"{doing}: {', '.join(parts)}" if parts else doing
