"""Terminal text of a cluster's tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.pictures.cluster_picture_content import Branch, ClusterPicture
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.strategy.text.replace_unprintable_characters import printable

MAX_WORDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterText:
    """Terminal renderable of a cluster's tree and its zone links."""

    picture: ClusterPicture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the tree, wrapped between words on a narrow console."""
        cluster = self.picture.cluster
        yield WrappedText(
            Text.assemble(
                (printable(cluster.expression, length=MAX_WORDS), "bold"),
                f": {cluster.described()}",
            )
        )
        yield Text("")
        for begin, words, bold in _tree_lines(self.picture.tree, "", ""):
            yield WrappedText(
                Text.assemble((begin, "dim"), (words, "bold" if bold else "")), hanging=len(begin)
            )
        for link in self.picture.links:
            yield WrappedText(Text(link), hanging=2)


def _tree_lines(branch: Branch, first: str, later: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (prefix, text, is a title) of a branch's lines; `first`, `later`: prefixes of lines."""
    times = f"{branch.count:,} x " if branch.count > 1 else ""
    yield first, f"{times}{branch.title}", True
    for line in branch.lines:
        yield later + ("│  " if branch.inside else "   "), line, False
    for number, inner in enumerate(branch.inside):
        last = number == len(branch.inside) - 1
        yield from _tree_lines(
            inner, later + ("└─ " if last else "├─ "), later + ("   " if last else "│  ")
        )
