"""Ctrl-C in a search: the first ends it with the best plan so far, the second at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from shardwright.search.search_time_limit import STOP

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, also where the search still had an answer."""


@contextmanager
def stop_search_on_interrupt() -> Iterator[None]:
    """Context: the first Ctrl-C stops a search with its best plan so far, the second interrupts.

    Searches look at the clock between pieces of compiled work of about a second.
    """
    STOP.clear()

    def stop(number: int, frame: FrameType | None) -> None:
        """Signal handler: stop the search at the first Ctrl-C, raise at the second."""
        if STOP.is_set():
            raise KeyboardInterrupt
        STOP.set()
        sys.stderr.write("\nstopping with the best found so far; Ctrl-C again ends at once\n")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def note_late_plan(*, waited: bool) -> None:
    """If `waited`, write on standard error that a stopped search first had to find a plan."""
    if waited:
        sys.stderr.write(
            "note: no plan was found before the search was to stop; it went on until the first\n"
        )


def exit_code_of_answer() -> int:
    """Exit code of an answer, 130 if Ctrl-C stopped its search, else 0; clears the stop flag."""
    stopped = STOP.is_set()
    STOP.clear()
    return INTERRUPTED if stopped else 0


def report_interrupted() -> int:
    """Report on standard error that the program was interrupted; returns exit code 130."""
    sys.stderr.write("interrupted\n")
    return INTERRUPTED
