"""Text on a screen of any width: lines break between words, and nothing is cut."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from shardwright.lazy_dataclass import dataclass

INDENT: Final = 2


def breaks(text: str, *, width: int, later: int | None = None) -> list[int]:
    """Positions at which new lines begin. Each line has the words that fit into `width` cells
    (`later` for all lines but the first), and at least one word.
    """
    found: list[int] = []
    start = end = 0
    room = width
    for word in re.finditer(r"\S+", text):
        if end > start and cell_len(text[start : word.end()]) > room:
            found.append(start := word.start())
            room = width if later is None else later
        end = word.end()
    return found


def broken(text: str, *, width: int) -> list[str]:
    """`text` as lines of at most `width` cells; a longer word has a line of its own."""
    places = breaks(text, width=width)
    return [text[a:b].strip() for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def unbroken(text: Text) -> Text:
    """`text` with its lines as they are, however wide the screen is."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


@dataclass(frozen=True, slots=True)
class Words:
    """Text that breaks between words, never inside one: what is copied from the screen is whole.
    Lines but the first begin `hanging` cells further in.
    """

    text: Text
    hanging: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines."""
        for line in self.text.split("\n", allow_blank=True):
            places = breaks(
                line.plain, width=options.max_width, later=options.max_width - self.hanging
            )
            for number, part in enumerate(line.divide(places)):
                part.rstrip()
                yield unbroken(Text.assemble(" " * self.hanging, part) if number else part)


@dataclass(frozen=True, slots=True)
class Indented:
    """A renderable under a heading, indented by `INDENT` cells."""

    body: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines, none cut."""
        inner = options.update_width(max(options.max_width - INDENT, 1))
        for line in Segment.split_lines(console.render(self.body, inner)):
            yield Segment(" " * INDENT)
            yield from line
            yield Segment.line()
