"""Ctrl-C in a search: the first ends it with the best so far, the second at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from shardwright.search.search_limit import STOP

INTERRUPTED: Final = 130
"""Exit code of a program that Ctrl-C ended, or the answer of whose search it cut short."""


@contextmanager
def stopping() -> Iterator[None]:
    """A search in which the first Ctrl-C is a time limit that has just passed; a second one is
    raised.

    Searches look at the clock between pieces of compiled work of about a second.
    """
    STOP.clear()

    def stop(number: int, frame: FrameType | None) -> None:
        if STOP.is_set():
            raise KeyboardInterrupt
        STOP.set()
        sys.stderr.write("\nstopping with the best found so far; Ctrl-C again ends at once\n")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def note(*, waited: bool) -> None:
    """Say of a search that had nothing yet when it was to stop that it `waited` for
    the first plan.
    """
    if waited:
        sys.stderr.write(
            "note: no plan was found before the search was to stop; it went on until the first\n"
        )


def code() -> int:
    """The exit code of an answer: 130 if its search was stopped by hand."""
    stopped = STOP.is_set()
    STOP.clear()
    return INTERRUPTED if stopped else 0


def say() -> int:
    """Say in one line that the program was interrupted; its exit code."""
    sys.stderr.write("interrupted\n")
    return INTERRUPTED
