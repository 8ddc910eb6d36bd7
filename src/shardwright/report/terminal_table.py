"""Plain tables without lines that fit the width of the screen; all screens use this style."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.terminal_line_wrapping import WrappedText, without_wrapping, wrapped_lines

GAP: Final = 2
MIN_WORD_COLUMN: Final = 14
"""Terminal cells down to which a column of words is narrowed to save another column."""
MIN_SHORTENED_COLUMN: Final = 18
"""Terminal cells that a column with shorter forms keeps while other columns can be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A terminal table without lines, made by `plain_table`."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]
    whole: frozenset[int]
    spare: tuple[int, ...]
    first_spare: int = 0
    shorter: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, wrapped, shortened or with columns left out to fit the screen."""
        width = options.max_width
        least = [self._min_width(column) for column in range(len(self.header))]
        wanted = [
            max(size, min(self._max_width(c), MIN_SHORTENED_COLUMN)) if c in self.shorter else size
            for c, size in enumerate(least)
        ]
        gone = _columns_left_out(wanted, spare=self.spare[: self.first_spare], width=width)
        gone |= _columns_left_out(
            least, spare=[*gone, *(c for c in self.spare if c not in gone)], width=width
        )
        columns = [column for column in range(len(self.header)) if column not in gone]
        widths = _widths(
            [least[c] for c in columns], [self._max_width(c) for c in columns], width=width
        )
        if any(self.header):
            yield from self._lines(self.header, columns, widths, style="dim", at_bottom=True)
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
        omissions = [
            f"{verb}: {', '.join(names)}"
            for verb, is_gone in _OMISSIONS
            if (names := self._titles(gone if is_gone else shortened))
        ]
        if omissions:
            full = [
                self._max_width(c) if c in self.shorter else size for c, size in enumerate(least)
            ]
            needed = _total(full) + console.width - width
            yield WrappedText(
                Text(
                    f"{'; '.join(omissions)}; a screen of {needed} columns shows all, and so does"
                    " --json",
                    style="dim",
                )
            )

    def _titles(self, columns: Collection[int]) -> list[str]:
        """Non-empty titles of columns, in column order."""
        return [self.header[c] for c in sorted(columns) if self.header[c]]

    def _cells(self, column: int) -> list[str]:
        """Cells of a column."""
        return [row[column] for row in self.rows]

    def _max_width(self, column: int) -> int:
        """Width in terminal cells of a column's longest text, its title included."""
        return max(map(cell_len, (self.header[column], *self._cells(column))))

    def _min_width(self, column: int) -> int:
        """Least width in terminal cells to which a column's texts can be wrapped or shortened."""
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
            max(
                title,
                min(max(MIN_WORD_COLUMN, *map(_longest_word, cells)), max(map(cell_len, cells))),
            )
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
        at_bottom: bool = False,
    ) -> Iterator[Text]:
        """Yield the lines of a row; wrapped cells are aligned at the top, or `at_bottom`."""
        cells = [
            wrapped_lines(row[column], width=size)
            for column, size in zip(columns, widths, strict=True)
        ]
        height = max(map(len, cells))
        if at_bottom:
            cells = [[""] * (height - len(cell)) + cell for cell in cells]
        for line in zip_longest(*cells, fillvalue=""):
            parts = (
                _padded(text, size, right=c in self.right)
                for text, c, size in zip(line, columns, widths, strict=True)
            )
            yield without_wrapping(Text((" " * GAP).join(parts).rstrip(), style=style))


_OMISSIONS: Final = (("not shown", True), ("shortened", False))


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
    """Borderless table fit to the screen: drop `first_spare` of `spare`, shorten cells, drop more.

    Cells break between words, never inside one. Where that is not enough columns are left out, and
    a line below says which.

    Args:
        right: columns of numbers, set to the right and never broken.
        whole: other columns that are not broken.
        spare: columns that may be left out, the first one first. A header of empty words is left
            out.
        shorter: shorter forms of the cells of columns that are not broken either, by row, the
            longest first: a cell shows the longest that its column has room for.
        first_spare: how many of `spare` are left out before cells are shortened
            below `MIN_SHORTENED_COLUMN`.
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
    """Terminal cells of the longest word."""
    return max(map(cell_len, text.split()), default=0)


def _padded(text: str, size: int, *, right: bool) -> str:
    """Pad a text to `size` terminal cells, on the left for right alignment."""
    room = " " * (size - cell_len(text))
    return room + text if right else text + room


def _total(widths: Sequence[int]) -> int:
    """Width in terminal cells of columns with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _columns_left_out(least: Sequence[int], *, spare: Sequence[int], width: int) -> set[int]:
    """Columns of `spare`, in order, that must be left out so that the others fit into `width`."""
    gone: set[int] = set()
    for column in spare:
        if _total([size for c, size in enumerate(least) if c not in gone]) <= width:
            break
        gone.add(column)
    return gone


def _widths(least: Sequence[int], most: Sequence[int], *, width: int) -> list[int]:
    """Column widths from `least` up to `most` that share the spare part of `width` evenly."""
    widths = list(least)
    left = max(width - _total(least), 0)
    wanting = sorted(range(len(least)), key=lambda c: most[c] - least[c])
    for done, column in enumerate(wanting):
        more = min(most[column] - least[column], left // (len(wanting) - done))
        widths[column] += more
        left -= more
    return widths
