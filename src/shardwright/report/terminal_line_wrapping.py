"""Wrapping of terminal text between words, so that no word is cut."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from shardwright.lazily_compiled_dataclass import dataclass

INDENT: Final = 2


def line_break_positions(text: str, *, width: int, later: int | None = None) -> list[int]:
    """Positions where lines after the first begin: `width` cells at first, `later` in further ones.

    Lines but the first have `later` cells. Each line has at least one word.
    """
    positions: list[int] = []
    start = end = 0
    room = width
    for word in re.finditer(r"\S+", text):
        if end > start and cell_len(text[start : word.end()]) > room:
            positions.append(start := word.start())
            room = width if later is None else later
        end = word.end()
    return positions


def wrapped_lines(text: str, *, width: int) -> list[str]:
    """Wrap `text` into lines of at most `width` cells; a longer word has a line of its own."""
    places = line_break_positions(text, width=width)
    return [text[a:b].strip() for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def without_wrapping(text: Text) -> Text:
    """Switch off wrapping of `text` in place and return it; its lines stay on any screen."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


@dataclass(frozen=True, slots=True)
class WrappedText:
    """Terminal text that wraps between words only, with a hanging indent of `hanging` cells.

    A name or path that is copied from the screen is never cut.
    """

    text: Text
    hanging: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the wrapped lines."""
        for line in self.text.split("\n", allow_blank=True):
            places = line_break_positions(
                line.plain, width=options.max_width, later=options.max_width - self.hanging
            )
            for number, part in enumerate(line.divide(places)):
                part.rstrip()
                yield without_wrapping(Text.assemble(" " * self.hanging, part) if number else part)


@dataclass(frozen=True, slots=True)
class Indented:
    """A renderable under a heading, indented by `INDENT` cells."""

    body: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the body, indented by `INDENT` cells."""
        inner = options.update_width(max(options.max_width - INDENT, 1))
        for line in Segment.split_lines(console.render(self.body, inner)):
            yield Segment(" " * INDENT)
            yield from line
            yield Segment.line()
