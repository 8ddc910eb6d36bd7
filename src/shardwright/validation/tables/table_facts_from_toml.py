"""Facts about tables from TOML files: the runtime of a source, the meaning of columns, and more.

Facts fill in settings that the tables leave out.

A rule selects rows, and fills empty cells, replaces cells, or reads a cell from the text of
another; or it says that the rows cannot be judged. Rules are applied in order, and the first that
gives a cell wins. Other parts of a file are remarks on rows that are far off; bars, orders and
scalings that predictions are held to; and bandwidths of networks. For example::

    where = { source_id = '^lab$' } rules = [{ where = { gpu = 'H100', pp = { at_least = 2 } }, fill
    = { runtime = "nemo-24.11", sp = 1 }, because = "its launch script" }]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.tables.csv_rows import Columns, TableForm
from shardwright.validation.tables.evaluate_expressions_in_option_text import require_computable
from shardwright.validation.tables.row_conditions import (
    TEXT,
    RowSelector,
    parse_pattern,
    parse_selector,
    require_column,
)
from shardwright.validation.tables.skipped_rows import SkipReason

FOLDER: Final = "facts"
MAX_FILE_BYTES: Final = 4 * 1024**2
RUN: Final = (
    "zero",
    "shard",
    "microbatches",
    "routed_experts",
    "disaggregated",
    "speculative",
)
"""Properties of the predicted run that remarks and bars may select by, besides columns."""
STATISTICS: Final = ("mean", "median", "worst")
_FORBID: Final = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def _table_form(info: ValidationInfo) -> TableForm[Any]:
    """Table form (columns and metrics) that pydantic's validation context holds."""
    form: Any = info.context
    return cast("TableForm[Any]", form)


def _table_columns(info: ValidationInfo) -> Columns:
    """Name -> cell parser of the columns of the tables that the facts are about."""
    return _table_form(info).columns


def _parse_cells(value: Any, info: ValidationInfo) -> dict[str, Any]:
    """Validator: parse a mapping column -> cell with the columns' parsers."""
    if not isinstance(value, dict):
        raise ValueError("not a mapping of columns to values")
    columns, parsed = _table_columns(info), {}
    for column, cell in value.items():
        require_column(column, columns)
        text = str(int(cell)) if isinstance(cell, bool) else str(cell)
        try:
            parsed[column] = columns[column](text)
        except ValueError as error:
            raise ValueError(f"{column}: {str(cell)[:40]!r} is {error}") from None
    return parsed


def _require_columns(value: Any, info: ValidationInfo) -> Any:
    """Validator: require that all keys are columns of the table."""
    for column in value if isinstance(value, dict) else ():
        require_column(column, _table_columns(info))
    return value


def _require_column_or_text(value: Any, info: ValidationInfo) -> str:
    """Validator: require a column of the table, or ``text``."""
    require_column(value, (*_table_columns(info), TEXT))
    return str(value)


def _parse_row_selector(value: Any, info: ValidationInfo) -> RowSelector:
    """Validator: parse a selector over the table's columns."""
    return parse_selector(value, columns=_table_columns(info))


def _parse_run_selector(value: Any, info: ValidationInfo) -> RowSelector:
    """Validator: parse a selector over the table's columns and properties of the run."""
    return parse_selector(value, columns=(*_table_columns(info), *RUN))


def _parse_limits(value: Any) -> Any:
    """Validator: limits as fold -> statistic -> limit; a number alone limits the mean."""
    if not isinstance(value, dict):
        return value
    limits = {
        fold: limit if isinstance(limit, dict) else {"mean": limit} for fold, limit in value.items()
    }
    for statistic in (name for limit in limits.values() for name in limit):
        if statistic not in STATISTICS:
            raise ValueError(f"{str(statistic)[:40]!r} is not one of {', '.join(STATISTICS)}")
    return limits


def _require_metric(value: Any, info: ValidationInfo) -> str:
    """Validator: require the name of a metric of the table."""
    metrics = _table_form(info).metrics
    if value not in metrics:
        raise ValueError(f"not one of {', '.join(metrics)}")
    return str(value)


def _require_expressions(value: Any, info: ValidationInfo) -> Any:
    """Validator: require well-formed expressions in options."""
    if isinstance(value, str):
        require_computable(value, _table_columns(info))
    return value


def _parse_pattern(value: Any) -> re.Pattern[str]:
    """Validator: compile a regular expression with exactly one group."""
    pattern = parse_pattern(value)
    if pattern.groups != 1:
        raise ValueError(
            f"{value[:40]!r} has {pattern.groups} groups: put what is to be read into one pair of"
            " parentheses"
        )
    return pattern


Where = Annotated[RowSelector, BeforeValidator(_parse_row_selector)]
WhereRun = Annotated[RowSelector, BeforeValidator(_parse_run_selector)]
Cells = Annotated[Mapping[str, Any], BeforeValidator(_parse_cells)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReading:
    """A rule to extract a cell's value from the text of another cell.

    Args:
        column: the cell with the text.
        pattern: its one group is the value.
        cuts: whether the group lists the first module of each pipeline stage and the last module,
            0, 7, 14, instead of the number of layers of each stage.
        before, after: modules at either end of that count that are not layers.
    """

    __pydantic_config__ = _FORBID
    column: Annotated[str, BeforeValidator(_require_column_or_text)]
    pattern: Annotated[re.Pattern[str], BeforeValidator(_parse_pattern)] = re.compile(r"(.+)")
    cuts: bool = False
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """Cells, options and model fields that a facts file adds to the rows that `where` selects.

    Args:
        fill: values of cells that the table leaves empty.
        read: values of empty cells, extracted from the text of another cell.
        replace: values of cells, also where the table has others.
        options: options of the runtime that another rule gives, unless that rule sets them; or of a
            serving engine, where ``prefill.`` or ``decode.`` limits one to those workers. Numbers
            may be computed from cells (`evaluate_expressions_in_option_text`).
        config: fields of the model's Hugging Face configuration.
        skip: reason why these rows are not judged.
        because: source of the fact, or the explanation of `skip`.
    """

    __pydantic_config__ = _FORBID
    where: Where = field(default_factory=RowSelector)
    fill: Cells = field(default_factory=dict)
    read: Annotated[Mapping[str, CellReading], BeforeValidator(_require_columns)] = field(
        default_factory=dict
    )
    replace: Cells = field(default_factory=dict)
    options: Annotated[str, BeforeValidator(_require_expressions)] = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    skip: SkipReason | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence that explains why the selected rows have large errors."""

    __pydantic_config__ = _FORBID
    where: WhereRun
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLimit:
    """Limits of the error |predicted / measured - 1| over a group of rows.

    Args:
        where: selectors of which a row must match one.
        metric: metric of the table; empty = its first.
        limits: kind of fold -> statistic (``mean``, ``median``, ``worst``) -> largest error.
        memory: the metric is memory.
        peer: error of the best published tool on these rows.
    """

    __pydantic_config__ = _FORBID
    name: str
    where: tuple[WhereRun, ...]
    metric: Annotated[str, BeforeValidator(_require_metric)] = ""
    limits: Annotated[Mapping[str, Mapping[str, float]], BeforeValidator(_parse_limits)] = field(
        default_factory=dict
    )
    memory: bool = False
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderingCheck:
    """A sweep whose order of plans by predicted time is compared with the measured order."""

    __pydantic_config__ = _FORBID
    name: str
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCheck:
    """Weak scaling: runs with equal work for each device, on `fewest` and on `most` devices."""

    __pydantic_config__ = _FORBID
    name: str
    where: Where
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfitted:
    """Rows that are judged but not used in fits, because the model lacks a mechanism."""

    __pydantic_config__ = _FORBID
    where: Where
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCards:
    """Total bandwidth and efficiency of the network cards of a node.

    Args:
        bandwidth: bytes/s, one direction, of all cards.
        efficiency: share of the bandwidth that large messages reach.
        because: source.
    """

    __pydantic_config__ = _FORBID
    bandwidth: float
    efficiency: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """All facts about the tables of one call: rules, remarks, limits, checks and networks.

    Args:
        networks: lower-case text of the column ``inter_net`` -> bytes/s, one direction, of all
            cards of a node, or the cards.
    """

    __pydantic_config__ = _FORBID
    rules: tuple[RowRule, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unfitted: tuple[Unfitted, ...] = ()
    bars: tuple[ErrorLimit, ...] = ()
    orders: tuple[OrderingCheck, ...] = ()
    scalings: tuple[ScalingCheck, ...] = ()
    networks: Mapping[str, float | NetworkCards] = field(default_factory=dict)

    def joined(self, other: TableFacts) -> TableFacts:
        """Join two sets of facts, those of `self` first; for one network key `self` wins."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        both: dict[str, Any] = {
            name: {**theirs, **ours} if isinstance(ours, Mapping) else (*ours, *theirs)
            for name, (ours, theirs) in pairs.items()
        }
        return TableFacts(**both)


_FILE: Final = TypeAdapter(TableFacts)
_WHERE: Final[TypeAdapter[RowSelector]] = TypeAdapter(Where)


def facts_of(
    tables: Iterable[Path], *, form: TableForm[Any], folder: Path | None = None
) -> TableFacts:
    """Read the facts in `folder`, or else in the folders ``facts`` beside the tables.

    Raises:
        DataError: as `read_facts`.
    """
    if folder is not None:
        return read_facts(folder, form=form)
    joined = TableFacts()
    for beside in dict.fromkeys(table.parent / FOLDER for table in tables):
        if beside.is_dir():
            joined = joined.joined(read_facts(beside, form=form))
    return joined


def read_facts(folder: Path, *, form: TableForm[Any]) -> TableFacts:
    """Read the facts of all ``.toml`` files of a folder, in the order of their names.

    Args:
        form: form of the tables that the facts are about.

    Raises:
        DataError: no such folder, or a file cannot be read or has another form; the file and the
        place in it are named.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", hint="give a folder of facts (.toml files)")
    joined = TableFacts()
    for path in sorted(folder.glob("*.toml")):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}", hint="a file of facts on tables") from None
        joined = joined.joined(parse_facts(content, name=path.name, form=form))
    return joined


def parse_facts(content: bytes, *, name: str, form: TableForm[Any]) -> TableFacts:
    """Parse facts from a TOML text.

    A key ``where`` at the top narrows every rule and remark.

    Args:
        name: name of the text in errors.

    Raises:
        DataError: as `read_facts`.
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
        top = _WHERE.validate_python(document.pop("where", {}), context=form)
        facts = _FILE.validate_python(document, context=form)
    except ValidationError as error:
        raise _first_error(error, name=name) from None

    def narrowed(selecting: Iterable[Any]) -> tuple[Any, ...]:
        """Rules or remarks whose selectors also require the file's selector at the top."""
        return tuple(replace(part, where=top.narrowed(part.where)) for part in selecting)

    return replace(facts, rules=narrowed(facts.rules), remarks=narrowed(facts.remarks))


def _first_error(error: ValidationError, *, name: str) -> DataError:
    """Convert the first pydantic error to a DataError with its place."""
    details = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(
        f"{part + 1}" if isinstance(part, int) else part[:60] for part in details["loc"]
    )
    message = details["msg"].removeprefix("Value error, ")
    hint = (
        "rules, remarks and bars are counted from 1"
        if any(isinstance(part, int) for part in details["loc"])
        else ""
    )
    return DataError(f"{name}: {place or 'where'}: {message[:300]}", hint=hint)
