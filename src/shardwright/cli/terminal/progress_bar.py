"""The progress bar on standard error, drawn by rich."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def start_bar(
    console: Console | None, *, elapsed_s: float
) -> tuple[Callable[[str, int, int], None], Callable[[], None]]:
    """Show a progress bar: returns a function to update it and a function to end it.

    The update takes a phase, the amount done and the total (0 = unknown).

    Args:
        elapsed_s: seconds since the work began.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console or Console(file=sys.stderr, highlight=False),
        transient=True,
    )
    task = bar.add_task("", total=None)
    bar.tasks[task].start_time = bar.get_time() - elapsed_s

    def update(phase: str, done: int, total: int) -> None:
        """Show a phase, the amount done and the total (0 = unknown)."""
        bar.update(task, description=phase, completed=done, total=total or None)

    bar.start()
    return update, bar.stop
