"""Titled sections and labelled lines of a screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.terminal_line_wrapping import Indented, WrappedText
from shardwright.search.answer_summary_text import LABEL, NO_FIT, WARNING, Line

TITLE_STYLE = "bold"


REMARK_STYLE = "dim"


def labelled_lines(lines: Sequence[Line]) -> RenderableType:
    """Lines of (label, words) with bold labels; warnings and "does not fit" are coloured."""
    return Group(
        *(WrappedText(_line(label, words), hanging=LABEL if label else 0) for label, words in lines)
    )


def _line(label: str, words: str) -> Text:
    """Text of a bold padded label and its words; warnings yellow, "does not fit" red."""
    text = Text.assemble((f"{label:<{LABEL}}", TITLE_STYLE) if label else "", words)
    for highlighted, style in ((NO_FIT, "bold red"), (WARNING, "yellow")):
        text.highlight_words((highlighted,), style)
    return text


def section(title: str, body: RenderableType) -> RenderableType:
    """A bold title after an empty line, and an indented body below."""
    wrapped = WrappedText(body) if isinstance(body, Text) and not body.no_wrap else body
    return Group(WrappedText(Text(f"\n{title}", style=TITLE_STYLE)), Indented(wrapped))
