"""What rich draws: results on standard output, and a bar of progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Timer
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from shardwright.cli.screen import Report

SILENT_SECONDS: Final = 1.0


def show_on_terminal(renderable: RenderableType) -> bool:
    """Print in colour on standard output where that is a terminal; whether it is."""
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        console.print(renderable, crop=False)
    return console.is_terminal


def plain(renderable: RenderableType, *, width: int) -> str:
    """What a renderable looks like without colour, with nothing at the ends of lines."""
    text = StringIO()
    Console(file=text, width=width, highlight=False, color_system=None, force_terminal=False, legacy_windows=False).print(
        renderable, crop=False
    )
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


@contextmanager
def progress(*, doing: str, console: Console | None, clock: Callable[[], float]) -> Iterator[Report]:
    """A report function whose bar appears once the work has taken longer than a second, reported or not."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console or Console(file=sys.stderr, highlight=False),
        transient=True,
    )
    start = clock()
    task = bar.add_task(doing, total=None)
    # What is reported once and then takes long, as compiling does, must be seen too.
    late = Timer(SILENT_SECONDS, bar.start)
    late.daemon = True
    late.start()

    def report(phase: str, done: int, total: int) -> None:
        bar.update(task, description=phase, completed=done, total=total or None)
        if clock() - start >= SILENT_SECONDS and not bar.live.is_started:
            bar.start()

    try:
        yield report
    finally:
        late.cancel()
        late.join()
        if bar.live.is_started:
            bar.stop()
