"""Large pictures made readable: columns that repeat are drawn once, and what still does not fit is
left out in the middle and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.lazy_dataclass import dataclass
from shardwright.report.pictures.plan_picture import Cell, Picture

MAX_PERIOD = 256
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A drawn column or row: one that stands for itself, the first of several that repeat, or
    (`hidden`) a gap for those left out.
    """

    members: tuple[int, ...]
    hidden: bool = False

    @property
    def repeat(self) -> str:
        """``x7 @16``: drawn once for 7 columns, 16 apart; empty for one."""
        return (
            f"x{len(self.members)} @{self.members[1] - self.members[0]}"
            if len(self.members) > 1 and not self.hidden
            else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The rows and columns of a picture that are drawn."""

    columns: tuple[Band, ...]
    rows: tuple[Band, ...]


def whole(picture: Picture) -> View:
    """Everything."""
    return View(columns=_single(len(picture.columns)), rows=_single(len(picture.rows)))


def folded(picture: Picture, *, columns: int, rows: int) -> View:
    """At most `columns` and `rows` bands (but three of each).

    Columns repeat at a period if the same rows do the same there, in chunks that grow by the same
    number each time. A view that has room for all columns is not folded.
    """
    bands = _single(len(picture.columns))
    if len(bands) > columns:
        bands = _repeats(picture)
    return View(
        columns=_cut(bands, limit=columns), rows=_cut(_single(len(picture.rows)), limit=rows)
    )


def _single(count: int) -> tuple[Band, ...]:
    return tuple(Band(members=(i,)) for i in range(count))


def _cut(bands: tuple[Band, ...], *, limit: int) -> tuple[Band, ...]:
    """Bands with the middle left out where there are more than `limit`."""
    limit = max(limit, 3)
    if len(bands) <= limit:
        return bands
    before, after = limit // 2, (limit - 1) // 2
    middle = tuple(sorted(m for band in bands[before : len(bands) - after] for m in band.members))
    return (*bands[:before], Band(members=middle, hidden=True), *bands[len(bands) - after :])


def _repeats(picture: Picture) -> tuple[Band, ...]:
    """Columns as bands, each repetition drawn once; from the left, the period that saves most."""
    cells: list[list[Cell]] = [[] for _ in picture.columns]
    for cell in picture.cells:
        cells[cell.column].append(cell)
    looks: dict[object, int] = {}
    marks: list[int] = []
    chunks: list[tuple[int, ...]] = []
    for column, here in zip(picture.columns, cells, strict=True):
        names = tuple(_NUMBER.sub("#", part) for part in column.parts)
        look = (
            column.blocks,
            names,
            tuple((c.row, c.lane, c.degrees, picture.letters[c.lane][c.chunk]) for c in here),
        )
        marks.append(looks.setdefault(look, len(looks)))
        chunks.append(tuple(c.chunk for c in here))
    result: list[Band] = []
    at = 0
    while at < len(marks):
        times, period = max(
            ((_times(marks, chunks, at, p), p) for p in range(1, MAX_PERIOD + 1)),
            key=lambda tp: ((tp[0] - 1) * tp[1], -tp[1]),
        )
        result += [
            Band(members=tuple(range(at + i, at + i + times * period, period)))
            for i in range(period if times > 1 else 1)
        ]
        at += times * period if times > 1 else 1
    return tuple(result)


def _times(marks: Sequence[int], chunks: Sequence[tuple[int, ...]], at: int, period: int) -> int:
    """Number of times that the `period` columns from `at` repeat in a row, with chunks in equal
    steps.
    """
    if at + 2 * period > len(marks) or marks[at] != marks[at + period]:
        return 1
    steps = [
        tuple(b - a for a, b in zip(chunks[at + i], chunks[at + period + i], strict=False))
        for i in range(period)
    ]
    times = 1
    while at + (times + 1) * period <= len(marks):
        for i in range(period):
            here, there = at + (times - 1) * period + i, at + times * period + i
            if (
                marks[here] != marks[there]
                or tuple(b - a for a, b in zip(chunks[here], chunks[there], strict=True))
                != steps[i]
            ):
                return times
        times += 1
    return times


def words_of(cell: Cell, *, picture: Picture, level: int) -> str:
    """The text of a cell: lane, chunk and cuts (level 0), chunk and letter of its trees (1), or the
    chunk alone (2).
    """
    named = len(picture.lanes) > 1
    if level == 0:
        lane = f"{picture.lanes[cell.lane][0]}/" if named else ""
        return f"{lane}{cell.chunk} {cell.degrees}".rstrip()
    letter = picture.letters[cell.lane][cell.chunk] if level == 1 and len(picture.trees) > 1 else ""
    return f"{lane_mark(cell.lane, lanes=len(picture.lanes))}{cell.chunk}{letter}"


def lane_mark(lane: int, *, lanes: int) -> str:
    """The short sign of a lane before its chunks: nothing and ``'`` for one or two lanes, ``3:``
    for one of many.
    """
    if lanes <= 2:
        return "'" * lane
    return f"{lane}:"


def clipped(name: str, *, length: int) -> str:
    """A name in at most `length` characters; of ``head.logits`` the end is kept, of others the
    beginning.
    """
    if len(name) <= length:
        return name
    return "…" + name[1 - length :] if "." in name else name[: length - 1] + "…"
