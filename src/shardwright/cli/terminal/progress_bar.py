"""The bar of progress that rich draws on standard error."""

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


def started(
    console: Console | None, *, elapsed_s: float
) -> tuple[Callable[[str, int, int], None], Callable[[], None]]:
    """Show a bar: a function that tells it a phase, how much of it is done and how much there is (0
    = not known), and one that ends it.

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

    def tell(phase: str, done: int, total: int) -> None:
        bar.update(task, description=phase, completed=done, total=total or None)

    bar.start()
    return tell, bar.stop
