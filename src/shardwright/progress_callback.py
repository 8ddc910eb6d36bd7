"""Type of a progress callback, and the progress line of a search."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback with the name of the current work, the number of finished parts, and the number of all
parts (0 = unknown).
"""


class SearchProgress(str):
    """The progress line of a search, with the numbers in it.

    Args:
        best_s: seconds of the best plan so far; inf = no plan yet.
        lower_s: lower bound in seconds of all plans of the space; 0 = not known yet.
    """

    __slots__ = ("best_s", "lower_s")

    best_s: float
    lower_s: float

    def __new__(cls, text: str, *, best_s: float, lower_s: float) -> SearchProgress:
        """Make a progress line from its text and its numbers."""
        line = super().__new__(cls, text)
        line.best_s, line.lower_s = best_s, lower_s
        return line


def beside(progress: Progress | None, what: str) -> Progress | None:
    """Progress callback that puts "`what`: " before each text; None where there is no callback.

    They are plain text, as their numbers are not those of the answer.
    """
    if progress is None:
        return None
    return lambda text, done, total: progress(f"{what}: {text}", done, total)
