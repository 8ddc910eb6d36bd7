"""Read CSV tables as rows of a dataclass, with errors that name line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from shardwright.errors import DataError, nearest
from shardwright.lazily_compiled_dataclass import dataclass

MAX_FILE_BYTES: Final = 64 * 1024**2
MAX_COUNT: Final = 10**15
EMPTY: Final = (None, "", ())
"""Values of empty cells."""
CLUSTER_FILES: Final = (".yaml", ".yml", ".json")
"""Endings of a cell that names a cluster file."""
Row = TypeVar("Row")
CellParser = Callable[[str], Any]
Columns = Mapping[str, CellParser]
"""Column -> parser of a cell's text, which raises ValueError."""
Lines = Iterable[tuple[int, list[str]]]
"""(line, cells) of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm(Generic[Row]):
    """The columns of a kind of table, its row class and its required columns.

    Args:
        make: class of the rows, with a field ``line``.
        required: columns that the header must have; the first one is never empty.
        metrics: metrics that rows may have, the usual metric first.
        files: column -> endings of a cell that is a path from the table's folder, not a text.
        rewrite: header and lines in the columns of this form, for tables of another layout.
    """

    make: Callable[..., Row]
    columns: Columns
    required: tuple[str, ...]
    metrics: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rewrite: Callable[[list[str], Lines, str], tuple[list[str], Lines]] | None = None


def text_cell(cell: str) -> str:
    """Parse a cell as text, without surrounding blanks."""
    return cell.strip()


def count_cell(cell: str) -> int | None:
    """Parse a cell as a whole number; None if it is empty."""
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
    """Parse a cell as a finite number from 0 on; None if it is empty."""
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
    """Parse a cell as whole numbers with commas between; () if it is empty."""
    return tuple(count_cell(part) or 0 for part in cell.split(",")) if cell.strip() else ()


_PARSERS: Final[Columns] = {
    "str": text_cell,
    "int | None": count_cell,
    "float | None": number_cell,
    "tuple[int, ...]": counts_cell,
}


def columns_of(row: Any, *, more: Columns | None = None) -> Columns:
    """Field name -> cell parser of each field of a row class, except `line`, by its annotation.

    Args:
        more: annotation -> parser, for annotations other than text, whole numbers and numbers.
    """
    parsers = {**_PARSERS, **(more or {})}
    return {f.name: parsers[str(f.type)] for f in fields(row) if f.name != "line"}


def read_table(path: Path | str, *, form: TableForm[Row]) -> tuple[Row, ...]:
    """Read a CSV file as rows; a path in a cell gets the table's folder in front.

    Raises:
        DataError: the file cannot be read or is no table, a required column is missing, or a cell
        is malformed (line and column are named).
    """
    path = Path(path)
    rows = parse_table(read_bytes(path), form=form, source=path.name or str(path))
    return tuple(replace(row, **_located(row, path.parent, form=form)) for row in rows)  # type: ignore[type-var]


def _located(row: Any, folder: Path, *, form: TableForm[Row]) -> dict[str, str]:
    """Column -> path from the table's folder, for the cells that name files."""
    cells = {column: getattr(row, column) for column in form.files}
    return {
        column: str(folder / cell)
        for column, cell in cells.items()
        if cell and cell.endswith(form.files[column]) and not cell.lstrip().startswith("{")
    }


def parse_table(content: bytes, *, form: TableForm[Row], source: str) -> tuple[Row, ...]:
    """Parse a CSV text in UTF-8 as rows, without empty lines; unknown columns are ignored.

    Args:
        source: name of the table in errors.

    Raises:
        DataError: as `read_table`.
    """
    names, lines = table_lines(content, source=source)
    if form.rewrite is not None:
        names, lines = form.rewrite(names, lines, source)
    _check_header(names, form=form, source=source)
    return tuple(
        _row(names, cells, line=line, form=form, source=source)
        for line, cells in lines
        if any(cells)
    )


def read_bytes(path: Path) -> bytes:
    """Content of a table's file; DataError if unreadable or too large.

    Raises:
        DataError: the file cannot be read, or is too large.
    """
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


def table_lines(content: bytes, *, source: str) -> tuple[list[str], Lines]:
    """Split a UTF-8 CSV text into (names in the header, iterator of (line number, cells) below).

    Raises:
        DataError: not UTF-8, or not valid CSV; the latter also while lines are taken.
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
    """Yield (number of the row's first line, cells) of each row; DataError for invalid CSV."""
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


def _check_header(names: list[str], *, form: TableForm[Row], source: str) -> None:
    """Raise DataError if a required column is missing or a column appears twice."""
    missing = [name for name in form.required if name not in names]
    if missing:
        hint = (
            nearest(missing[0], [n[:60] for n in names if n])
            if any(names)
            else "the first line names the columns"
        )
        raise DataError(f"{source} line 1: no column {missing[0]}", hint=hint)
    twice = next((name for name in names if name in form.columns and names.count(name) > 1), "")
    if twice:
        raise DataError(f"{source} line 1: column {twice} appears twice", hint="keep one of them")


def _row(
    names: list[str], cells: list[str], *, line: int, form: TableForm[Row], source: str
) -> Row:
    """Parse the cells of one line into a row."""
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
