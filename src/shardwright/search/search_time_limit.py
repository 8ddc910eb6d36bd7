"""The time limit of a search, its numbered clock checks, and the text of its progress line."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from math import inf
from typing import Final

from shardwright.errors import OutOfTimeError
from shardwright.progress_callback import SearchProgress
from shardwright.units import format_percent, format_seconds

STOP: Final = threading.Event()
"""Event that ends every search of this process at its next clock check."""
PATIENCE: Final = 10
"""Multiple of its time limit, and at least FIRST_PLAN_S, for which a search without a plan goes on
until its first plan."""
FIRST_PLAN_S: Final = 60.0


@dataclass(slots=True)
class Limit:
    """The time limit of a search, with a counter of its clock checks.

    Between two checks a search does the same work for any clock, so the number of the check at
    which it stopped determines its state: a search of the same space with `stop_at` of that number
    ends with the same answer, on a faster or slower machine.

    Args:
        deadline_s: time limit on `time.monotonic`.
        given_up_s: time on the same clock at which a search without any plan ends too.
        stop_at: number of the check to stop at, instead of the clock; 0 = by the clock.
        most_looks: number of the check at which the limit passes for any clock, 0 = none.
        looks: number of checks so far.
        stopped_at: number of the check at which the limit passed, 0 = not yet; it stays.
        waited: True if the limit passed before there was a plan, and the search went on to its
            first.
    """

    deadline_s: float = inf
    given_up_s: float = inf
    stop_at: int = 0
    most_looks: int = 0
    looks: int = 0
    stopped_at: int = 0
    waited: bool = False

    def passed(self) -> bool:
        """Check the clock once; True if the limit has passed, now or before."""
        if not self.stopped_at:
            self.looks += 1
            if self.looks == self.stop_at if self.stop_at else self._is_due():
                self.stopped_at = self.looks
        return self.stopped_at > 0

    def _is_due(self) -> bool:
        """True if the check count, Ctrl-C or the deadline ends the search now."""
        return self.looks == self.most_looks or STOP.is_set() or time.monotonic() > self.deadline_s

    def ends(self, *, found: bool) -> bool:
        """Check the clock; True if the limit passed and a plan was `found`, so the search ends.

        Past the limit a search goes on until it has a plan, as an answer needs a plan.

        Raises:
            OutOfTimeError: no plan was found, and the patience for a first plan has passed too.
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
        """Seconds until the deadline, at least 0; inf without a deadline."""
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
    """A limit of `seconds` and `most_looks` clock checks; `stop_at` repeats a stopped search.

    `seconds` count from now. `most_looks` of 0 = any number, `stop_at` of 0 = a search that was not
    stopped.
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
    """Numbers of the clock checks at which the parts of a search were stopped, to repeat it.

    0 = the part ended by itself.

    Args:
        search: stop of the search itself; of a mixed search, of the proof of its bound.
        grids: stops of the grid searches at its start: one of a joint search, one of each pool of a
            mixed cluster.
        composed: stop of the part of a mixed search that finds plans.
    """

    search: int = 0
    grids: tuple[int, ...] = ()
    composed: int = 0


def progress_text(doing: str, *, best_s: float, lower_s: float, limit: Limit) -> SearchProgress:
    """Progress line of a search, such as ``refine: best 54.3 s, gap 85.1 %, 2 s left``.

    Args:
        doing: name of the phase of the search.
        best_s: seconds of the best plan so far; inf = no plan yet.
        lower_s: lower bound in seconds of the plans that are left; 0 = not known yet. Once the best
            plan is proven, a search for the next ones goes on with bounds above `best_s`.
    """
    lower_s = min(lower_s, best_s)
    parts = []
    if best_s < inf:
        parts.append(f"best {format_seconds(best_s)}")
        parts += [f"gap {format_percent(1 - lower_s / best_s)}"] if lower_s else []
    if limit.left_s < inf:
        parts.append(
            f"{limit.left_s:.0f} s left"
            if limit.left_s
            else "time is up"
            if parts
            else "time is up, on to the first plan"
        )
    text = f"{doing}: {', '.join(parts)}" if parts else doing
    return SearchProgress(text, best_s=best_s, lower_s=lower_s)
