"""Standard output, whatever it is: closed, full, left by its reader, or without the letters of a
screen.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

from shardwright.errors import OutputError

NOBODY_READS: Final = 141
"""Exit code where the reader of a pipe has gone, as `head` does: what a shell says of a program
that SIGPIPE ended."""
_PLAIN: Final = {
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
    """The other end of the pipe was closed."""


def prepare() -> None:
    """Write letters that standard output has not by ones that it has.

    Raises:
        OutputError: there is no standard output.
    """
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed",
            hint="write to a file with -o and to /dev/null with > /dev/null",
        )
    codecs.register_error("plain", _plain)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(
        _PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]
    ), error.end


def write(text: str) -> None:
    """Text on standard output.

    Raises:
        OutputError: the operating system refuses. ReaderGone: nobody reads it.
    """
    try:
        sys.stdout.write(text)
    except OSError as error:
        _give_up(error)


def finish() -> None:
    """Write what standard output still buffers. Raises as `write`."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(error)


def try_to_write(text: str) -> None:
    """Text on standard output, if that can be written at all: what is said there stands on standard
    error too.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError:
        forget()


def _give_up(error: OSError) -> None:
    forget()
    if isinstance(error, BrokenPipeError):
        raise ReaderGone from None
    raise OutputError(
        f"cannot write to standard output: {error.strerror}", hint="write to a file with -o"
    ) from None


def forget() -> None:
    """Standard output leads nowhere from here on: Python writes what is left when it ends, and
    would say that it cannot.
    """
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return
