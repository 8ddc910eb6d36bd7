"""Terminal text of a plan's picture, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.pictures.fill_colours_of_numbered_items import PALETTE
from shardwright.report.pictures.fold_repeated_columns import (
    Band,
    DrawnBands,
    cell_text,
    folded_view,
    full_view,
    lane_prefix,
    shortened_name,
)
from shardwright.report.pictures.plan_picture_content import PictureCell, PlanPicture, StageTrees
from shardwright.report.pictures.split_tree_nodes_and_text_lines import tree_lines
from shardwright.report.pictures.step_text import render_step
from shardwright.report.terminal_line_wrapping import WrappedText

MAX_ROWS = 40
MAX_TREES = 8
MAX_LABEL = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanText:
    """Terminal renderable of a plan picture: grid of devices x layers, split trees, schedules."""

    picture: PlanPicture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines no wider than the console."""
        yield WrappedText(
            Text.assemble(
                (self.picture.name, "bold"),
                f": {self.picture.devices:,} devices, {_block_count_text(self.picture)}",
            )
        )
        for line in _lines(self.picture, width=max(options.max_width, 30)):
            line.truncate(max(options.max_width, 30))
            line.no_wrap = True
            yield line
        if self.picture.step is not None:
            yield render_step(self.picture.step, width=max(options.max_width, 30))


def _lines(picture: PlanPicture, *, width: int) -> Iterator[Text]:
    """Yield the lanes, the grid, the split trees and the schedules as lines."""
    several = len(picture.lanes) > 1
    for number, (name, takes) in enumerate(picture.lanes[:MAX_ROWS]):
        mark = lane_prefix(number, lanes=len(picture.lanes))
        yield Text(f"  lane {name}{f' ({mark})' if several and mark else ''}: {takes}")
    yield Text("")
    yield from _grid(picture, width=width)
    yield Text("\nSplit trees", style="bold")
    for trees in picture.trees[:MAX_TREES]:
        yield from _trees(trees, lettered=len(picture.trees) > 1, width=width)
    if len(picture.trees) > MAX_TREES:
        yield Text(f"  .. {len(picture.trees) - MAX_TREES} more, all with --json", style="dim")
    yield Text("\nOrder" if len(picture.orders) == 1 else "\nOrders", style="bold")
    for order in picture.orders[:MAX_ROWS]:
        yield Text(f"  {order.title}")
        label = max((len(str(device)) for device, _ in order.lines), default=0)
        for device, slots in order.lines:
            line = f"    {device:>{label}}  {slots}"
            yield Text(line if len(line) <= width else line[: width - 1] + ">")


def _block_count_text(picture: PlanPicture) -> str:
    """Text of the number of blocks and the number of stages."""
    stages = sum(map(len, picture.letters))
    return (
        f"{sum(c.blocks for c in picture.columns):,} blocks, {stages:,}"
        f" {'stage' if stages == 1 else 'stages'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A view with the text of each cell by (row, column) and the width of each column."""

    view: DrawnBands
    words: dict[tuple[int, int], list[tuple[PictureCell, str]]]
    widths: tuple[int, ...]
    label: int
    gap: int
    shortening: int

    @property
    def width(self) -> int:
        """Characters of a line of the grid: row label, columns and gaps."""
        return self.label + sum(w + self.gap for w in self.widths)


def _layout(picture: PlanPicture, view: DrawnBands, *, shortening: int) -> _Layout:
    """Compute a view's cell texts and column widths; shortening 0 = full texts, 2 = shortest."""
    words: dict[tuple[int, int], list[tuple[PictureCell, str]]] = {}
    drawn = {band.members[0] for band in view.rows if not band.hidden}
    for cell in picture.cells:
        if cell.row in drawn:
            words.setdefault((cell.row, cell.column), []).append(
                (cell, cell_text(cell, picture=picture, shortening=shortening))
            )
    widest: dict[int, int] = {}
    for (_, column), several in words.items():
        widest[column] = max(widest.get(column, 0), _cell_length(several))
    widths = [
        max(
            *map(len, _header(picture, band, shortening=shortening)),
            0 if band.hidden else widest.get(band.members[0], 1),
        )
        for band in view.columns
    ]
    gap = 2 if shortening == 0 else 1
    for first, count, repeat in _repeated_spans(view.columns):
        widths[first] += max(
            0, len(repeat) - sum(widths[first : first + count]) - gap * (count - 1)
        )
    label = max(
        len(line) for line in ("devices", *(_row_label(picture, band) for band in view.rows))
    )
    return _Layout(
        view=view, words=words, widths=tuple(widths), label=label, gap=gap, shortening=shortening
    )


def _repeated_spans(bands: Sequence[Band]) -> Iterator[tuple[int, int, str]]:
    """Yield (first band, number of bands, repetition text) of neighbours with equal repetition."""
    at = 0
    for repeat, several in groupby(bands, key=lambda band: band.repeat):
        count = len(list(several))
        yield at, count, repeat
        at += count


def _cell_length(words: Sequence[tuple[PictureCell, str]]) -> int:
    """Characters of a cell's texts, with a space between two texts."""
    return sum(len(word) for _, word in words) + len(words) - 1


def _header(picture: PlanPicture, band: Band, *, shortening: int) -> tuple[str, ...]:
    """Lines of a column's header: names of its blocks, or a mark for hidden columns."""
    if band.hidden:
        return (f".. {len(band.members)}",)
    parts = tuple(
        shortened_name(part, length=14 if shortening < 2 else 7)
        for part in picture.columns[band.members[0]].parts
    )
    return parts if len(parts) <= 4 else (*parts[:2], "..", parts[-1])


def _row_label(picture: PlanPicture, band: Band) -> str:
    """Label of a row: its devices, or the number of hidden rows."""
    if band.hidden:
        return f".. {len(band.members)} more classes"
    return picture.rows[band.members[0]].label(length=MAX_LABEL)


def _widest_fitting_layout(picture: PlanPicture, *, width: int) -> _Layout:
    """The fullest layout of at most `width` characters: all columns, folded, or without middle."""
    rows = folded_view(picture, columns=len(picture.columns), rows=MAX_ROWS).rows
    for shortening in (0, 1):
        layout = _layout(
            picture,
            DrawnBands(columns=full_view(picture).columns, rows=rows),
            shortening=shortening,
        )
        if layout.width <= width:
            return layout
    last_column = len(picture.columns) - 1
    for shortening in (0, 1):
        layout = _layout(
            picture,
            DrawnBands(
                columns=folded_view(picture, columns=last_column, rows=MAX_ROWS).columns, rows=rows
            ),
            shortening=shortening,
        )
        if layout.width <= width:
            return layout
    for columns_most in (len(picture.columns), last_column):
        layout = _layout(
            picture,
            DrawnBands(
                columns=folded_view(picture, columns=columns_most, rows=MAX_ROWS).columns, rows=rows
            ),
            shortening=2,
        )
        if layout.width <= width:
            return layout
    for shortening in (1, 2):
        for columns in range(min(len(layout.view.columns), width // 3), 4, -1):
            layout = _layout(
                picture,
                DrawnBands(
                    columns=folded_view(picture, columns=columns, rows=MAX_ROWS).columns, rows=rows
                ),
                shortening=shortening,
            )
            if layout.width <= width:
                return layout
    return _layout(
        picture,
        DrawnBands(columns=folded_view(picture, columns=3, rows=MAX_ROWS).columns, rows=rows),
        shortening=2,
    )


def _grid(picture: PlanPicture, *, width: int) -> Iterator[Text]:
    """Yield the lines of the grid of devices x layers."""
    layout = _widest_fitting_layout(picture, width=width)
    between = " " * layout.gap
    if any(band.repeat for band in layout.view.columns):
        text = Text(" " * layout.label, style="dim")
        for first, count, repeat in _repeated_spans(layout.view.columns):
            size = sum(layout.widths[first : first + count]) + layout.gap * (count - 1)
            text.append(between + (f"{repeat} ".ljust(size, "─")[:size] if repeat else " " * size))
        yield text
    headers = [_header(picture, band, shortening=layout.shortening) for band in layout.view.columns]
    height = max(map(len, headers))
    for line in range(height):
        text = Text(("devices" if line == height - 1 else "").ljust(layout.label), style="dim")
        for header, size in zip(headers, layout.widths, strict=True):
            place = line - (height - len(header))
            text.append(between + (header[place] if place >= 0 else "").ljust(size))
        yield text
    for row in layout.view.rows:
        text = Text(_row_label(picture, row).ljust(layout.label))
        if not row.hidden:
            for column, size in zip(layout.view.columns, layout.widths, strict=True):
                text.append(between)
                _append_cell(
                    text,
                    (
                        []
                        if column.hidden
                        else layout.words.get((row.members[0], column.members[0]), [])
                    ),
                    size=size,
                )
        yield text
    if any(band.repeat for band in layout.view.columns):
        yield Text("xN @P: drawn once for N columns, P apart", style="dim")


def _append_cell(text: Text, words: Sequence[tuple[PictureCell, str]], *, size: int) -> None:
    """Append the texts of one cell on the colours of their chunks, padded to `size`."""
    if not words:
        text.append("·".ljust(size), style="dim")
        return
    room = size - _cell_length(words)
    for place, (cell, word) in enumerate(words):
        style = f"{'bold ' if cell.lane % 2 else ''}black on {PALETTE[cell.chunk % len(PALETTE)]}"
        last = place == len(words) - 1
        text.append(word + " " * (room if last else 1), style=style)


def _trees(trees: StageTrees, *, lettered: bool, width: int) -> Iterator[Text]:
    """Yield the trees of stages that share them, side by side as far as they fit into `width`."""
    for number, line in enumerate(trees.stages[:MAX_TREES]):
        letter = trees.letter + "  " if lettered and not number else "   " if lettered else ""
        yield Text(f"  {letter}{line}")
    if len(trees.stages) > MAX_TREES:
        yield Text(f"  .. {len(trees.stages) - MAX_TREES} more lanes")
    shelf: list[list[str]] = []
    for title, root in trees.trees:
        block = [title, *tree_lines(root)]
        if shelf and 4 + sum(max(map(len, b)) + 4 for b in (*shelf, block)) > width:
            yield from _side_by_side(shelf)
            shelf = []
        shelf.append(block)
    yield from _side_by_side(shelf)


def _side_by_side(blocks: Sequence[Sequence[str]]) -> Iterator[Text]:
    """Join blocks of lines horizontally; yields the lines of the result."""
    height = max(map(len, blocks), default=0)
    for line in range(height):
        text = Text("    ", style="dim" if line == 0 else "")
        for block in blocks:
            text.append((block[line] if line < len(block) else "").ljust(max(map(len, block)) + 4))
        text.rstrip()
        yield text
