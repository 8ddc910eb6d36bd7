"""Every error a user can cause, as one tree.

::

    ShardwrightError                   exit code 1
      UsageError                       2   flags and arguments
      ModelError                       3   config.json, catalog name, unsupported architecture
      ClusterError                     4   cluster expression, file, unknown accelerator
      StrategyError                    5   notation, illegal plan (rule id and path)
      InfeasibleError                  6   nothing in the space fits
      DataError                        7   plan files, measurements, profiles
      RuntimeModelError                8   unknown or unsuitable runtime description
      OutputError                      9   standard output cannot be written
      ResourceError                   10   not enough memory on this machine
      OutOfTimeError                  11   the time limit passed and no plan was found yet

An error is one line and a hint. `assert` is for our own bugs only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

MAX_WORD: Final = 60
"""Most letters of a name in a hint."""


class ShardwrightError(Exception):
    """Root of all errors raised on bad input: a message of one line and a hint of one line.

    Args:
        message: what is wrong, naming the field, file or word.
        hint: what to do about it; empty if there is nothing to say.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = _one_line(message)
        self.hint = _one_line(hint)

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


def _one_line(text: str) -> str:
    """Text on one line, with control characters written as escapes."""
    line = " ".join(text.split())
    return (
        line
        if line.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    )


class UsageError(ShardwrightError, ValueError):
    """A command-line flag or an argument is wrong."""

    exit_code = 2


class ModelError(ShardwrightError, ValueError):
    """The model cannot be read, or uses something that is not supported; the field is named."""

    exit_code = 3


class ClusterError(ShardwrightError, ValueError):
    """The cluster cannot be read, or a device is unknown."""

    exit_code = 4


class StrategyError(ShardwrightError, ValueError):
    """A strategy cannot be read, or breaks a rule.

    Args:
        rule: id of the broken rule, such as ``split.unused-dim``.
        path: where in the plan, such as ``lane main / stage 3 / mlp``.
    """

    exit_code = 5

    def __init__(self, message: str, *, hint: str = "", rule: str = "", path: str = "") -> None:
        where = f"{path}: " if path else ""
        which = f" [{rule}]" if rule else ""
        super().__init__(f"{where}{message}{which}", hint=hint)
        self.rule = rule
        self.path = path


class InfeasibleError(ShardwrightError):
    """No member of the space can run; states the tightest constraint and a plan that would fit."""

    exit_code = 6


class DataError(ShardwrightError, ValueError):
    """A plan file, a measurement table or a profile is unusable."""

    exit_code = 7


class RuntimeModelError(ShardwrightError, ValueError):
    """A runtime is unknown or cannot do what the strategy asks."""

    exit_code = 8


class OutputError(ShardwrightError):
    """The answer cannot be written to standard output: it is closed, or its disk is full."""

    exit_code = 9


class ResourceError(ShardwrightError):
    """This machine has too little memory for the work."""

    exit_code = 10


class OutOfTimeError(ShardwrightError):
    """A search stopped before it found any plan; there may be one."""

    exit_code = 11


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Hint with the candidates most like `word`, or the first few where none is near."""
    # Candidates may be the fields of a file, of any length.
    names = sorted(
        name if len(name) <= MAX_WORD else f"{name[:MAX_WORD]}..." for name in candidates
    )
    close = difflib.get_close_matches(word[:MAX_WORD].lower(), names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    shown = ", ".join(names[:8])
    return f"known: {shown}{', ...' if len(names) > 8 else ''}" if names else ""
