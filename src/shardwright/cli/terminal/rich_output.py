"""Print text and tables on standard output with rich."""

from __future__ import annotations

import sys
from io import StringIO

from rich.console import Console, RenderableType


def show_on_terminal(renderable: RenderableType) -> bool:
    """Print a screen in colour if standard output is a terminal; False if it is not."""
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        console.print(renderable, crop=False)
    return console.is_terminal


def plain(renderable: RenderableType, *, width: int) -> str:
    """Render a screen to plain text `width` characters wide, without trailing spaces."""
    text = StringIO()
    Console(
        file=text,
        width=width,
        highlight=False,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    ).print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
