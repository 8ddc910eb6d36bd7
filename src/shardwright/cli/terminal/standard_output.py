"""Write to standard output that may be closed, full, left by its reader or without Unicode."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

from shardwright.errors import OutputError

NOBODY_READS: Final = 141
"""Exit code where the reader of a pipe (such as `head`) has gone: a shell's code after SIGPIPE."""
_ASCII: Final = {
    "█": "#",
    "±": "+-",
    "×": "x",
    "→": "->",
    "…": "...",
    "│": "|",
    "├": "|",
    "└": "`",
    "─": "-",
}


class ReaderGone(Exception):  # noqa: N818 - not an error: nobody waits for more
    """Raised when the other end of the pipe was closed."""


def prepare() -> None:
    """Set standard output to replace characters that its encoding lacks.

    Raises:
        OutputError: there is no standard output.
    """
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed",
            hint="write to a file with -o and to /dev/null with > /dev/null",
        )
    codecs.register_error("plain", _ascii_replacement)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="plain")


def _ascii_replacement(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replace box-drawing characters by ASCII, others by ``?``."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(
        _ASCII.get(letter, "?") for letter in error.object[error.start : error.end]
    ), error.end


def write(text: str) -> None:
    """Write text on standard output; raises ReaderGone or OutputError if that fails.

    Raises:
        OutputError: the operating system refuses. ReaderGone: the reader of the pipe has gone.
    """
    try:
        sys.stdout.write(text)
    except OSError as error:
        _give_up(error)


def finish() -> None:
    """Flush standard output; raises ReaderGone or OutputError if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(error)


def try_to_write(text: str) -> None:
    """Write text on standard output, ignoring every failure to write."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError:
        redirect_to_null()


def _give_up(error: OSError) -> None:
    """Redirect standard output to nowhere, and raise ReaderGone or OutputError."""
    redirect_to_null()
    if isinstance(error, BrokenPipeError):
        raise ReaderGone from None
    raise OutputError(
        f"cannot write to standard output: {error.strerror}", hint="write to a file with -o"
    ) from None


def redirect_to_null() -> None:
    """Redirect standard output to /dev/null, so that Python's exit reports no failure."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return
