"""Shorten a large plan picture: draw repeated columns once, and leave out the middle."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.pictures.plan_picture_content import PictureCell, PlanPicture

MAX_PERIOD = 256
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A drawn column or row: a single one, the first of several repeats, or a hidden gap.

    A gap (`hidden`) stands for the members that are left out.
    """

    members: tuple[int, ...]
    hidden: bool = False

    @property
    def repeat(self) -> str:
        """Text ``x7 @16`` if drawn once for 7 columns, 16 apart; empty for a single column."""
        return (
            f"x{len(self.members)} @{self.members[1] - self.members[0]}"
            if len(self.members) > 1 and not self.hidden
            else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBands:
    """The rows and columns of a plan picture that are drawn, as bands."""

    columns: tuple[Band, ...]
    rows: tuple[Band, ...]


def full_view(picture: PlanPicture) -> DrawnBands:
    """DrawnBands of a plan picture in which every row and column is drawn."""
    return DrawnBands(
        columns=_one_band_each(len(picture.columns)), rows=_one_band_each(len(picture.rows))
    )


def folded_view(picture: PlanPicture, *, columns: int, rows: int) -> DrawnBands:
    """DrawnBands within `columns` and `rows` bands: fold repeated columns, then drop the middle.

    Three bands are always drawn.

    Columns repeat at a period if the same rows do the same there, in chunks that grow by the same
    number each time. A view that has room for all columns is not folded.
    """
    bands = _one_band_each(len(picture.columns))
    if len(bands) > columns:
        bands = _folded_columns(picture)
    return DrawnBands(
        columns=_without_middle(bands, limit=columns),
        rows=_without_middle(_one_band_each(len(picture.rows)), limit=rows),
    )


def _one_band_each(count: int) -> tuple[Band, ...]:
    """A band of its own for each of `count` rows or columns."""
    return tuple(Band(members=(i,)) for i in range(count))


def _without_middle(bands: tuple[Band, ...], *, limit: int) -> tuple[Band, ...]:
    """Replace the middle by one hidden band if there are more than `limit` (at least 3) bands."""
    limit = max(limit, 3)
    if len(bands) <= limit:
        return bands
    before, after = limit // 2, (limit - 1) // 2
    middle = tuple(sorted(m for band in bands[before : len(bands) - after] for m in band.members))
    return (*bands[:before], Band(members=middle, hidden=True), *bands[len(bands) - after :])


def _folded_columns(picture: PlanPicture) -> tuple[Band, ...]:
    """Columns as bands with repeated periods drawn once; of periods, the one that saves most."""
    cells: list[list[PictureCell]] = [[] for _ in picture.columns]
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
            ((_repetitions(marks, chunks, at, p), p) for p in range(1, MAX_PERIOD + 1)),
            key=lambda tp: ((tp[0] - 1) * tp[1], -tp[1]),
        )
        result += [
            Band(members=tuple(range(at + i, at + i + times * period, period)))
            for i in range(period if times > 1 else 1)
        ]
        at += times * period if times > 1 else 1
    return tuple(result)


def _repetitions(
    marks: Sequence[int], chunks: Sequence[tuple[int, ...]], at: int, period: int
) -> int:
    """Times that `period` columns from `at` repeat (1: once only), with chunks in equal steps."""
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


def cell_text(cell: PictureCell, *, picture: PlanPicture, shortening: int) -> str:
    """Text of a cell at `shortening` 0: chunk and cuts; 1: chunk and tree letter; 2: chunk."""
    several_lanes = len(picture.lanes) > 1
    if shortening == 0:
        lane = f"{picture.lanes[cell.lane][0]}/" if several_lanes else ""
        return f"{lane}{cell.chunk} {cell.degrees}".rstrip()
    letter = (
        picture.letters[cell.lane][cell.chunk] if shortening == 1 and len(picture.trees) > 1 else ""
    )
    return f"{lane_prefix(cell.lane, lanes=len(picture.lanes))}{cell.chunk}{letter}"


def lane_prefix(lane: int, *, lanes: int) -> str:
    """Prefix of a lane's chunk numbers: empty or ``'`` with up to two lanes, else as ``3:``."""
    if lanes <= 2:
        return "'" * lane
    return f"{lane}:"


def shortened_name(name: str, *, length: int) -> str:
    """Shorten a name to `length` characters: with a dot in it the end stays, else the start."""
    if len(name) <= length:
        return name
    return "…" + name[1 - length :] if "." in name else name[: length - 1] + "…"
