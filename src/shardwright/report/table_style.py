"""The one look of all tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from shardwright.lazy_dataclass import dataclass
from shardwright.report.line_breaking import Words, broken, unbroken

GAP: Final = 2
NARROW: Final = 14
"""Cells below which a column of words is not made narrower to save another column."""
COMFORT: Final = 18
"""Cells that a column with shorter forms keeps as long as there is a column to leave out for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A table without lines; see `plain_table`."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]
    whole: frozenset[int]
    spare: tuple[int, ...]
    first_spare: int = 0
    shorter: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines: as wide as the screen where its columns can be so narrow."""
        width = options.max_width
        least = [self._least(column) for column in range(len(self.header))]
        wanted = [
            max(size, min(self._most(c), COMFORT)) if c in self.shorter else size
            for c, size in enumerate(least)
        ]
        gone = _gone(wanted, spare=self.spare[: self.first_spare], width=width)
        gone |= _gone(least, spare=[*gone, *(c for c in self.spare if c not in gone)], width=width)
        columns = [column for column in range(len(self.header)) if column not in gone]
        widths = _widths([least[c] for c in columns], [self._most(c) for c in columns], width=width)
        if any(self.header):
            yield from self._lines(self.header, columns, widths, style="dim", below=True)
        shortened: set[int] = set()
        for number, row in enumerate(self.rows):
            cells = list(row)
            for column, size in zip(columns, widths, strict=True):
                if column in self.shorter and cell_len(row[column]) > size:
                    cells[column] = next(
                        form for form in self.shorter[column][number] if cell_len(form) <= size
                    )
                    shortened.add(column)
            yield from self._lines(cells, columns, widths)
        told = [
            f"{what}: {', '.join(names)}"
            for what, some in _TOLD
            if (names := self._titles(gone if some else shortened))
        ]
        if told:
            full = [self._most(c) if c in self.shorter else size for c, size in enumerate(least)]
            needed = _total(full) + console.width - width
            yield Words(
                Text(
                    f"{'; '.join(told)}; a screen of {needed} columns shows all, and so does"
                    " --json",
                    style="dim",
                )
            )

    def _titles(self, columns: Collection[int]) -> list[str]:
        return [self.header[c] for c in sorted(columns) if self.header[c]]

    def _cells(self, column: int) -> list[str]:
        return [row[column] for row in self.rows]

    def _most(self, column: int) -> int:
        return max(map(cell_len, (self.header[column], *self._cells(column))))

    def _least(self, column: int) -> int:
        cells = self._cells(column)
        title = _longest_word(self.header[column])
        if column in self.shorter:
            return max(
                title,
                *(
                    min(map(cell_len, (cell, *forms)))
                    for cell, forms in zip(cells, self.shorter[column], strict=True)
                ),
                0,
            )
        if column in self.right or column in self.whole:
            return (
                max(map(cell_len, cells), default=0)
                if not title
                else max(title, *map(cell_len, cells), 0)
            )
        return (
            max(title, min(max(NARROW, *map(_longest_word, cells)), max(map(cell_len, cells))))
            if cells
            else title
        )

    def _lines(
        self,
        row: Sequence[str],
        columns: Sequence[int],
        widths: Sequence[int],
        *,
        style: str = "",
        below: bool = False,
    ) -> Iterator[Text]:
        """A row; with `below`, cells of fewer lines stand at its foot."""
        cells = [
            broken(row[column], width=size) for column, size in zip(columns, widths, strict=True)
        ]
        height = max(map(len, cells))
        if below:
            cells = [[""] * (height - len(cell)) + cell for cell in cells]
        for line in zip_longest(*cells, fillvalue=""):
            parts = (
                _set(text, size, right=c in self.right)
                for text, c, size in zip(line, columns, widths, strict=True)
            )
            yield unbroken(Text((" " * GAP).join(parts).rstrip(), style=style))


_TOLD: Final = (("not shown", True), ("shortened", False))


def plain_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
    spare: Sequence[int] = (),
    first_spare: int = 0,
    shorter: Mapping[int, Sequence[Sequence[str]]] | None = None,
) -> PlainTable:
    """A table without lines, no wider than the screen as far as its words allow.

    Cells break between words, never inside one. Where that is not enough columns are left out, and
    a line below says which.

    Args:
        right: columns of numbers, set to the right and never broken.
        whole: other columns that are not broken.
        spare: columns that may be left out, the first one first. A header of empty words is left
            out.
        shorter: shorter forms of the cells of columns that are not broken either, by row, the
            longest first: a cell shows the longest that its column has room for.
        first_spare: how many of `spare` are left out before cells are shortened below `COMFORT`.
    """
    return PlainTable(
        header=tuple(header),
        rows=tuple(map(tuple, rows)),
        right=frozenset(right),
        whole=frozenset(whole),
        spare=tuple(spare),
        first_spare=first_spare,
        shorter={column: tuple(map(tuple, forms)) for column, forms in (shorter or {}).items()},
    )


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _set(text: str, size: int, *, right: bool) -> str:
    room = " " * (size - cell_len(text))
    return room + text if right else text + room


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _gone(least: Sequence[int], *, spare: Sequence[int], width: int) -> set[int]:
    """The first of `spare` without which the rest fits into `width`."""
    gone: set[int] = set()
    for column in spare:
        if _total([size for c, size in enumerate(least) if c not in gone]) <= width:
            break
        gone.add(column)
    return gone


def _widths(least: Sequence[int], most: Sequence[int], *, width: int) -> list[int]:
    """At least `least`, at most `most`; what is left of `width` goes in equal parts to those that
    want more.
    """
    widths = list(least)
    left = max(width - _total(least), 0)
    wanting = sorted(range(len(least)), key=lambda c: most[c] - least[c])
    for done, column in enumerate(wanting):
        more = min(most[column] - least[column], left // (len(wanting) - done))
        widths[column] += more
        left -= more
    return widths
