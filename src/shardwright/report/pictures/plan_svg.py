"""SVG picture of a plan: the same bytes for the same plan, without scripts or fonts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from shardwright.report.pictures.fill_colours_of_numbered_items import PALETTE
from shardwright.report.pictures.fold_repeated_columns import (
    Band,
    DrawnBands,
    cell_text,
    folded_view,
    shortened_name,
)
from shardwright.report.pictures.plan_picture_content import PictureCell, PlanPicture, StageTrees
from shardwright.report.pictures.split_tree_nodes_and_text_lines import TreeNode
from shardwright.report.pictures.step_svg import step_parts
from shardwright.report.pictures.svg_drawing import (
    FAINT,
    FONT,
    INK,
    LETTER,
    LINE,
    MARGIN,
    PAD,
    SvgSheet,
    coordinate,
)
from shardwright.strategy.text.replace_unprintable_characters import printable

MAX_COLUMNS: Final = 40
MAX_ROWS: Final = 48
MAX_TREES: Final = 12
MAX_SLOTS: Final = 160
ROW: Final = 24


def plan_svg(picture: PlanPicture) -> str:
    """Draw a plan picture as SVG: lanes, grid of devices x layers, split trees, small schedules.

    Widths of columns grow with the blocks they hold; lanes after the first are hatched. Every drawn
    cell is a rect of class ``cell``.
    """
    sheet = SvgSheet(parts=[])
    y = float(MARGIN + LINE)
    sheet.text(MARGIN, y, f"{printable(picture.name)}: {picture.devices:,} devices", bold=True)
    y = _lanes(sheet, picture, y + LINE)
    y = _grid(sheet, picture, y + LINE)
    y = _all_trees(sheet, picture, y + 2 * LINE)
    y = _orders(sheet, picture, y + LINE)
    if picture.step is not None:
        y = step_parts(sheet, picture.step, y + LINE)
    width, height = coordinate(sheet.right + MARGIN), coordinate(y + MARGIN)
    head = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0'
            f' 0 {width} {height}" font-family="monospace" font-size="{FONT}">'
        ),
        f"<title>{escape(picture.name)}</title>",
        (
            '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"'
            ' patternTransform="rotate(45)"><rect width="1.5" height="6" fill="#000"'
            ' fill-opacity="0.13"/></pattern></defs>'
        ),
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    return "\n".join([*head, *sheet.parts, "</svg>"]) + "\n"


def _lanes(sheet: SvgSheet, picture: PlanPicture, y: float) -> float:
    """Draw a line of text for each lane from `y` downwards; returns the y below."""
    for number, (name, takes) in enumerate(picture.lanes[:MAX_ROWS]):
        if len(picture.lanes) > 1:
            sheet.rect(MARGIN, y - 10, 18, 12, fill="#eee")
            if number % 2:
                sheet.rect(MARGIN, y - 10, 18, 12, fill="url(#hatch)")
        sheet.text(MARGIN + (26 if len(picture.lanes) > 1 else 0), y, f"lane {name}: {takes}")
        y += LINE
    return y


def _grid(sheet: SvgSheet, picture: PlanPicture, y: float) -> float:
    """Draw the grid's headers, cells and notes from `y`; returns the y below."""
    view = folded_view(picture, columns=MAX_COLUMNS, rows=MAX_ROWS)
    shortening = 0 if len(view.columns) <= MAX_COLUMNS // 2 else 1
    cells: dict[tuple[int, int], list[PictureCell]] = {}
    for cell in picture.cells:
        cells.setdefault((cell.row, cell.column), []).append(cell)
    headers = [_header(picture, band) for band in view.columns]
    widths = [
        _column_width(picture, band, header, cells, view=view, shortening=shortening)
        for band, header in zip(view.columns, headers, strict=True)
    ]
    labels = [_row_label(picture, band) for band in view.rows]
    left = MARGIN + max(map(len, [*labels, "devices"])) * LETTER + 2 * PAD
    top = y + max(map(len, headers)) * LINE
    sheet.text(MARGIN, top - PAD, "devices", colour=FAINT)
    x = left
    for header, width in zip(headers, widths, strict=True):
        for place, words in enumerate(reversed(header)):
            sheet.text(x + width / 2, top - PAD - place * LINE, words, colour=FAINT, middle=True)
        x += width
    y = top
    for row, label in zip(view.rows, labels, strict=True):
        sheet.text(MARGIN, y + ROW / 2 + 4, label, colour=FAINT if row.hidden else INK)
        x = left
        for column, width in zip(view.columns, widths, strict=True):
            if row.hidden or column.hidden:
                sheet.text(x + width / 2, y + ROW / 2 + 4, "..", colour=FAINT, middle=True)
            else:
                _cell(
                    sheet,
                    picture,
                    cells.get((row.members[0], column.members[0]), []),
                    x,
                    y,
                    width,
                    shortening=shortening,
                )
            x += width
        y += ROW
    if any(band.repeat for band in view.columns):
        sheet.text(left, y + LINE, "xN @P: drawn once for N columns, P apart", colour=FAINT)
        y += LINE
    return y


def _cell(
    sheet: SvgSheet,
    picture: PlanPicture,
    cells: Sequence[PictureCell],
    x: float,
    y: float,
    width: float,
    *,
    shortening: int,
) -> None:
    """Draw one grid cell: a faint frame if empty, or one rectangle a lane side by side."""
    if not cells:
        sheet.rect(x, y, width, ROW, fill="#f7f7f7")
        return
    share = width / len(cells)
    for place, cell in enumerate(cells):
        at = x + place * share
        lane = picture.lanes[cell.lane][0]
        title = (
            f"lane {lane}, stage {cell.chunk}: {cell.degrees or 'one device'} on"
            f" {picture.rows[cell.row].devices}"
        )
        sheet.rect(
            at, y, share, ROW, fill=PALETTE[cell.chunk % len(PALETTE)], kind="cell", title=title
        )
        if cell.lane % 2:
            sheet.rect(at, y, share, ROW, fill="url(#hatch)")
        sheet.text(
            at + share / 2,
            y + ROW / 2 + 4,
            cell_text(cell, picture=picture, shortening=shortening),
            middle=True,
        )


def _header(picture: PlanPicture, band: Band) -> tuple[str, ...]:
    """Lines of a column's header: names of its blocks, or a mark for hidden columns."""
    if band.hidden:
        return (f".. {len(band.members)}",)
    parts = tuple(
        shortened_name(part, length=16) for part in picture.columns[band.members[0]].parts
    )
    parts = parts if len(parts) <= 4 else (*parts[:2], "..", parts[-1])
    return (*parts, band.repeat) if band.repeat else parts


def _row_label(picture: PlanPicture, band: Band) -> str:
    """Label of a row: its devices, or the number of hidden rows."""
    if band.hidden:
        return f".. {len(band.members)} more classes"
    row = picture.rows[band.members[0]]
    return row.label(length=len(row.devices))


def _column_width(
    picture: PlanPicture,
    band: Band,
    header: Sequence[str],
    cells: dict[tuple[int, int], list[PictureCell]],
    *,
    view: DrawnBands,
    shortening: int,
) -> float:
    """Width of a column in pixels: enough for its text, and growing with its number of blocks."""
    words = max(map(len, header))
    if not band.hidden:
        for row in view.rows:
            cells_here = cells.get((row.members[0], band.members[0]), []) if not row.hidden else []
            words = max(
                words,
                len(cells_here)
                * max(
                    (len(cell_text(c, picture=picture, shortening=shortening)) for c in cells_here),
                    default=0,
                ),
            )
    blocks = 0 if band.hidden else picture.columns[band.members[0]].blocks
    return max(words * LETTER + 2 * PAD, min(16 + 4.0 * blocks, 160))


def _all_trees(sheet: SvgSheet, picture: PlanPicture, y: float) -> float:
    """Draw the split trees of all stages from `y`; returns the y below."""
    sheet.text(MARGIN, y, "Split trees", bold=True)
    y += LINE
    for trees in picture.trees[:MAX_TREES]:
        y = _trees(sheet, trees, y, lettered=len(picture.trees) > 1)
    if len(picture.trees) > MAX_TREES:
        sheet.text(MARGIN, y, f".. {len(picture.trees) - MAX_TREES} more", colour=FAINT)
        y += LINE
    return y


def _trees(sheet: SvgSheet, trees: StageTrees, y: float, *, lettered: bool) -> float:
    """Draw the trees of stages that share them, one below the other; returns the y below."""
    for line in trees.stages[:MAX_TREES]:
        sheet.text(MARGIN, y, f"{trees.letter}  {line}" if lettered else line)
        y += LINE
    if len(trees.stages) > MAX_TREES:
        sheet.text(MARGIN, y, f".. {len(trees.stages) - MAX_TREES} more lanes", colour=FAINT)
        y += LINE
    indent = (
        MARGIN + PAD + max(len(title) for title, _ in trees.trees) * LETTER + 3 * PAD
        if trees.trees
        else MARGIN
    )
    for title, root in trees.trees:
        sheet.text(MARGIN + PAD, y + ROW / 2 + 2, title, colour=FAINT)
        y = _node(sheet, root, indent, y) + PAD
    return y + PAD


def _node(sheet: SvgSheet, node: TreeNode, x: float, y: float) -> float:
    """Draw a tree node with its children to the right; returns the y below all of them."""
    width, height = len(node.label) * LETTER + 2 * PAD, ROW - 6
    sheet.rect(x, y, width, height, fill="#eef3f8" if node.children else "#f4f4ea", kind="node")
    sheet.text(x + PAD, y + height / 2 + 4, node.label)
    if not node.children:
        return y + ROW
    reach = max(len(child.branch) for child in node.children) * LETTER + 2 * PAD
    middle, below = y + height / 2, y
    for child in node.children:
        at = below + height / 2
        start = x + width if at == middle else x + width + PAD / 2
        if at != middle:
            sheet.line(start, middle, start, at)
        sheet.line(start, at, x + width + reach + PAD, at)
        if child.branch:
            sheet.text(x + width + PAD, at - 4, child.branch, colour=FAINT)
        below = _node(sheet, child, x + width + reach + PAD, below)
    return below


def _orders(sheet: SvgSheet, picture: PlanPicture, y: float) -> float:
    """Draw each pipeline schedule as lines of text from `y` downwards; returns the y below."""
    sheet.text(MARGIN, y, "Order" if len(picture.orders) == 1 else "Orders", bold=True)
    y += LINE
    for order in picture.orders[:MAX_ROWS]:
        sheet.text(MARGIN, y, order.title)
        y += LINE
        label = max((len(str(device)) for device, _ in order.lines), default=0)
        for device, slots in order.lines:
            words = f"{device:>{label}}  {slots}"
            words = words if len(words) <= MAX_SLOTS else words[: MAX_SLOTS - 1] + ">"
            # Runs of spaces hold the columns apart.
            sheet.text(MARGIN + PAD, y, words.replace(" ", "\N{NO-BREAK SPACE}"))
            y += LINE
    return y
