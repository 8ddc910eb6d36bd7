"""CSV files whose rows are of one class: cells are read by the names in the header, and what is
malformed is named by line and column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from shardwright.errors import DataError, nearest
from shardwright.lazy_dataclass import dataclass

MAX_FILE_BYTES: Final = 64 * 1024**2
MAX_COUNT: Final = 10**15
EMPTY: Final = (None, "", ())
"""Values of cells that say nothing."""
Row = TypeVar("Row")
CellParser = Callable[[str], Any]
Columns = Mapping[str, CellParser]
"""Name of each column -> what turns a cell's text into its value; raises ValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[Row]):
    """What the rows of a kind of table are.

    Args:
        make: their class, with a field ``line``.
        required: columns without which it is no such table; the first one is never empty.
    """

    make: Callable[..., Row]
    columns: Columns
    required: tuple[str, ...]


def text_cell(cell: str) -> str:
    """Words."""
    return cell.strip()


def count_cell(cell: str) -> int | None:
    """A whole number."""
    cell = cell.strip()
    if not cell:
        return None
    if not (cell.isascii() and cell.isdigit() and len(cell) <= 16):
        raise ValueError("not a whole number")
    value = int(cell)
    if value > MAX_COUNT:
        raise ValueError("too large")
    return value


def number_cell(cell: str) -> float | None:
    """A finite number from 0."""
    cell = cell.strip()
    if not cell:
        return None
    if len(cell) > 40:
        raise ValueError("not a number")
    value = float(cell)
    if not math.isfinite(value) or value < 0:
        raise ValueError("not a finite number from 0")
    return value


def counts_cell(cell: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(count_cell(part) or 0 for part in cell.split(",")) if cell.strip() else ()


_PARSERS: Final[Columns] = {
    "str": text_cell,
    "int | None": count_cell,
    "float | None": number_cell,
    "tuple[int, ...]": counts_cell,
}


def columns_of(row: Any, *, more: Columns | None = None) -> Columns:
    """The columns of a class of rows, by the annotations of its fields; `more`: parsers of other
    annotations.
    """
    parsers = {**_PARSERS, **(more or {})}
    return {f.name: parsers[str(f.type)] for f in fields(row) if f.name != "line"}


def read_bytes(path: Path) -> bytes:
    """The content of a table's file. Raises DataError: it cannot be read, or is too large."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a readable path"
        raise DataError(f"{path}: {reason}", hint="give a CSV file of measurements") from None
    if len(content) > MAX_FILE_BYTES:
        raise DataError(
            f"{path}: larger than {MAX_FILE_BYTES} bytes", hint="give a CSV file of measurements"
        )
    return content


def table_lines(
    content: bytes, *, source: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """(names of the header, (line, cells) of each row) of a CSV text in UTF-8. Raises DataError,
    also while rows are taken.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: not UTF-8 text (byte {error.start})", hint="save the table as UTF-8 CSV"
        ) from None
    rows = _lines(csv.reader(StringIO(text, newline=""), strict=True), source=source)
    _, header = next(rows, (1, []))
    return [cell.strip() for cell in header], rows


def _lines(reader: Any, *, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row; the line is where the row begins."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{source} line {line}: {error}", hint="the table is not valid CSV here"
            ) from None
        yield line, cells


def parse_rows(
    names: list[str], lines: Iterable[tuple[int, list[str]]], *, form: Form[Row], source: str
) -> tuple[Row, ...]:
    """The rows, without empty lines; columns that the form does not have are passed over.

    Raises:
        DataError: a required column is missing or a column appears twice; a cell is malformed (line
        and column are named).
    """
    _check_header(names, form=form, source=source)
    return tuple(
        _row(names, cells, line=line, form=form, source=source)
        for line, cells in lines
        if any(cells)
    )


def _check_header(names: list[str], *, form: Form[Row], source: str) -> None:
    missing = [name for name in form.required if name not in names]
    if missing:
        near = (
            nearest(missing[0], [n[:60] for n in names if n])
            if any(names)
            else "the first line names the columns"
        )
        raise DataError(f"{source} line 1: no column {missing[0]}", hint=near)
    known = [name for name in names if name in form.columns]
    for name in known:
        if known.count(name) > 1:
            raise DataError(
                f"{source} line 1: column {name} appears twice", hint="keep one of them"
            )


def _row(names: list[str], cells: list[str], *, line: int, form: Form[Row], source: str) -> Row:
    if len(cells) > len(names):
        raise DataError(
            f"{source} line {line}: {len(cells)} cells for {len(names)} columns",
            hint="is a comma not quoted?",
        )
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=False):
        parser = form.columns.get(name)
        if parser is None:
            continue
        try:
            values[name] = parser(cell)
        except ValueError as error:
            reason = str(error) if "convert" not in str(error) else "not a number"
            raise DataError(
                f"{source} line {line}, column {name}: {cell[:40]!r} is {reason}",
                hint="leave unknown cells empty",
            ) from None
    for name in form.required:
        values.setdefault(name, form.columns[name](""))
    if not values[form.required[0]]:
        raise DataError(
            f"{source} line {line}, column {form.required[0]}: empty",
            hint="every row names its source",
        )
    return form.make(line=line, **values)
