"""What is known of tables beside their cells, read from TOML files: which runtime a source ran,
what its columns mean, what it left out.

A rule says of the rows that it selects which empty cells are to be filled, which are to be
replaced, and which are to be read from another cell's words; or that they cannot be judged. Rules
are asked in order and the first that gives a cell wins. Further parts of a file are remarks on rows
that are far off, bars, orders and scalings that predictions are held to, and the rates of networks.
For example::

    where = { source_id = '^lab$' } rules = [{ where = { gpu = 'H100', pp = { at_least = 2 } }, fill
    = { runtime = "nemo-24.11", sp = 1 }, because = "its launch script" }]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo

from shardwright.errors import DataError, nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.tables.cell_expressions import require_computable
from shardwright.validation.tables.csv_rows import Columns
from shardwright.validation.tables.measured_rows import COLUMNS
from shardwright.validation.tables.measured_run import SkipReason
from shardwright.validation.tables.row_conditions import (
    TEXT,
    Selector,
    parse_pattern,
    parse_selector,
)

FOLDER: Final = "facts"
MAX_FILE_BYTES: Final = 4 * 1024**2
PLAN: Final = ("zero", "shard", "microbatches")
"""What a remark may ask of the plan that ran, besides the columns of a table."""
_FORBID: Final = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def _columns(info: ValidationInfo) -> Columns:
    """Those of the kind of table that the facts are of."""
    return (info.context or {}).get("columns", COLUMNS)  # type: ignore[no-any-return]


def _no_column(name: Any, known: Iterable[str]) -> ValueError:
    return ValueError(f"there is no column {str(name)[:40]!r}: {nearest(str(name)[:40], known)}")


def _cells(value: Any, info: ValidationInfo) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a mapping of columns to values")
    columns, found = _columns(info), {}
    for column, cell in value.items():
        if column not in columns:
            raise _no_column(column, columns)
        try:
            found[column] = columns[column](str(int(cell)) if isinstance(cell, bool) else str(cell))
        except ValueError as error:
            raise ValueError(f"{column}: {str(cell)[:40]!r} is {error}") from None
    return found


def _readings(value: Any, info: ValidationInfo) -> Any:
    columns = _columns(info)
    unknown = (
        next((column for column in value if column not in columns), None)
        if isinstance(value, dict)
        else None
    )
    if unknown is not None:
        raise _no_column(unknown, columns)
    return value


def _readable(value: Any, info: ValidationInfo) -> str:
    known = (*_columns(info), TEXT)
    if value not in known:
        raise _no_column(value, known)
    return str(value)


def _where(value: Any, info: ValidationInfo) -> Selector:
    return parse_selector(value, columns=_columns(info))


def _where_plan(value: Any, info: ValidationInfo) -> Selector:
    return parse_selector(value, columns=_columns(info), more=PLAN)


def _options(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        require_computable(value, _columns(info))
    return value


def _pattern(value: Any) -> re.Pattern[str]:
    pattern = parse_pattern(value)
    if pattern.groups != 1:
        raise ValueError(
            f"{value[:40]!r} has {pattern.groups} groups: put what is to be read into one pair of"
            " parentheses"
        )
    return pattern


Where = Annotated[Selector, BeforeValidator(_where)]
WherePlan = Annotated[Selector, BeforeValidator(_where_plan)]
Cells = Annotated[Mapping[str, Any], BeforeValidator(_cells)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A cell read from the words of another.

    Args:
        column: where to look.
        pattern: its one group is the cell.
        cuts: the group lists where pipeline stages begin and end, not how many layers each has: 0,
            7, 14.
        before, after: modules counted there that are no layers: before the first, after the last.
    """

    __pydantic_config__ = _FORBID
    column: Annotated[str, BeforeValidator(_readable)]
    pattern: Annotated[re.Pattern[str], BeforeValidator(_pattern)] = re.compile(r"(.+)")
    cuts: bool = False
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What holds for the rows of `where`.

    Args:
        fill: cells where the table has none.
        read: the same, from words of the row.
        replace: cells whatever the table says.
        options: of the runtime that another rule gives, where that does not set them itself, or of
            an engine: its numbers may be computed from cells (`validation.computed`), and
            ``prefill.`` or ``decode.`` before a name says whose workers' it is.
        config: fields of the model's Hugging Face configuration.
        skip: why these rows are not judged.
        because: how it is known, or the words that say why.
    """

    __pydantic_config__ = _FORBID
    where: Where = field(default_factory=Selector)
    fill: Cells = field(default_factory=dict)
    read: Annotated[Mapping[str, Reading], BeforeValidator(_readings)] = field(default_factory=dict)
    replace: Cells = field(default_factory=dict)
    options: Annotated[str, BeforeValidator(_options)] = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    skip: SkipReason | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence on rows that are far off, written after looking."""

    __pydantic_config__ = _FORBID
    where: WherePlan
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Mean |predicted / measured - 1| of a group of rows must not exceed a limit.

    Args:
        where: the rows; any of these.
        limits: kind of fold -> limit.
        memory: of bytes, not of seconds.
        peer: what the best published tool reaches on these rows.
    """

    __pydantic_config__ = _FORBID
    name: str
    where: tuple[Where, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    memory: bool = False
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Plans of one sweep whose order by predicted time is compared with that by measured time."""

    __pydantic_config__ = _FORBID
    name: str
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Runs of the same work a device on the fewest and on the most devices."""

    __pydantic_config__ = _FORBID
    name: str
    where: Where
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfitted:
    """Rows that are judged, and that no constant is fitted to: a mechanism of theirs is known to be
    missing.
    """

    __pydantic_config__ = _FORBID
    where: Where
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The network cards of a node.

    Args:
        bandwidth: bytes/s, one direction, of all cards.
        efficiency: the share of it that large messages reach.
        because: where from.
    """

    __pydantic_config__ = _FORBID
    bandwidth: float
    efficiency: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is known of the tables at hand.

    Args:
        networks: lower-case words of ``inter_net`` -> bytes/s, one direction, of all cards of a
            node, or the cards.
    """

    __pydantic_config__ = _FORBID
    rules: tuple[Rule, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unfitted: tuple[Unfitted, ...] = ()
    bars: tuple[Bar, ...] = ()
    orders: tuple[Ordering, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    networks: Mapping[str, float | Cards] = field(default_factory=dict)

    def joined(self, other: Facts) -> Facts:
        """Both; the names of `self` win."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        both: dict[str, Any] = {
            name: {**theirs, **ours} if isinstance(ours, Mapping) else (*ours, *theirs)
            for name, (ours, theirs) in pairs.items()
        }
        return Facts(**both)


_FILE: Final = TypeAdapter(Facts)
_WHERE: Final[TypeAdapter[Selector]] = TypeAdapter(Where)


def facts_beside(tables: Iterable[Path], *, columns: Columns = COLUMNS) -> Facts:
    """Facts of the folders ``facts`` that lie beside tables; none where there is no such folder.
    Raises DataError as `read_facts`.
    """
    found = Facts()
    for folder in dict.fromkeys(table.parent / FOLDER for table in tables):
        if folder.is_dir():
            found = found.joined(read_facts(folder, columns=columns))
    return found


def read_facts(folder: Path, *, columns: Columns = COLUMNS) -> Facts:
    """Facts of all ``.toml`` files of a folder, by name, on tables with these columns.

    Raises:
        DataError: no such folder, a file cannot be read, or is not of this form; the file and the
        place in it are named.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", hint="give a folder of facts (.toml files)")
    found = Facts()
    for path in sorted(folder.glob("*.toml")):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}", hint="a file of facts on tables") from None
        found = found.joined(parse_facts(content, name=path.name, columns=columns))
    return found


def parse_facts(content: bytes, *, name: str, columns: Columns = COLUMNS) -> Facts:
    """The facts in a TOML text; `name` names it in errors. A key ``where`` at the top narrows every
    rule and remark of the file.

    Raises:
        DataError: see `read_facts`.
    """
    if len(content) > MAX_FILE_BYTES:
        raise DataError(
            f"{name}: larger than {MAX_FILE_BYTES} bytes", hint="a file of facts on tables"
        )
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not TOML: {error}", hint="a file of facts on tables") from None
    try:
        every = _WHERE.validate_python(document.pop("where", {}), context={"columns": columns})
        facts = _FILE.validate_python(document, context={"columns": columns})
    except ValidationError as error:
        raise _first_error(error, name=name) from None
    return replace(
        facts,
        rules=tuple(replace(rule, where=every.narrowed(rule.where)) for rule in facts.rules),
        remarks=tuple(
            replace(remark, where=every.narrowed(remark.where)) for remark in facts.remarks
        ),
    )


def _first_error(error: ValidationError, *, name: str) -> DataError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(f"{part + 1}" if isinstance(part, int) else part[:60] for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    hint = (
        "rules, remarks and bars are counted from 1"
        if any(isinstance(part, int) for part in first["loc"])
        else ""
    )
    return DataError(f"{name}: {place or 'where'}: {message[:300]}", hint=hint)
