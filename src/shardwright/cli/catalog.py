"""``shardwright catalog``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest
from shardwright.files.text import to_text
from shardwright.hardware.catalog.catalog import ACCELERATORS
from shardwright.model.catalog.catalog import ENTRIES
from shardwright.report.tables import plain_table
from shardwright.runtime.registry import load_runtime, runtime_names
from shardwright.runtime.runtime import Runtime
from shardwright.schedules.registry import SCHEDULES
from shardwright.units import GIB, TERA, format_count


@dataclass(frozen=True, slots=True)
class Column:
    """A column: key in JSON, its value of an entry (its attribute of that name if not given), title (empty = only in JSON), how a value is
    shown, and whether it is a number.
    """

    key: str
    value: Callable[[Any], Any] | None = None
    title: str = ""
    shown: Callable[[Any], str] = str
    is_number: bool = False

    def of(self, entry: Any) -> Any:
        """The value that an entry has here."""
        found = getattr(entry, self.key) if self.value is None else self.value(entry)
        return list(found) if isinstance(found, tuple) else found


def _names(values: Sequence[str]) -> str:
    return ", ".join(values)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value else "-"


NAME: Final = Column("name", title="name")
ALIASES: Final = Column("aliases", title="also", shown=_names)
ACCELERATOR: Final = (
    NAME,
    Column("vendor", title="vendor"),
    Column("memory_gib", lambda a: a.memory_bytes / GIB, "GiB", _whole, is_number=True),
    Column("memory_bandwidth_tb_per_s", lambda a: a.memory_bandwidth / TERA, "TB/s", lambda v: f"{v:.2f}", is_number=True),
    Column("bf16_tflops", lambda a: a.peak(Dtype.BF16) / TERA, "bf16 TFLOP/s", _whole, is_number=True),
    Column("fp8_tflops", lambda a: a.peak(Dtype.FP8) / TERA, "fp8 TFLOP/s", _whole, is_number=True),
    Column("evidence", lambda a: a.origin.evidence.value, "known by"),
    Column("reference", lambda a: a.origin.reference),
    ALIASES,
)
MODEL: Final = (
    Column("name", lambda e: e.names[0], "name"),
    Column("parameters", title="parameters", shown=format_count, is_number=True),
    Column("architecture", lambda e: ", ".join(e.config.get("architectures", [])), "architecture"),
    Column("reference", lambda e: e.source),
    Column("aliases", lambda e: e.names[1:], "also", _names),
)
RUNTIME: Final = (
    NAME,
    *(Column(key, title=key) for key in ("framework", "version", "released")),
    Column("schedules", title="schedules", shown=_names),
    ALIASES,
)


def _runtimes() -> list[Runtime]:
    return [load_runtime(name) for name in runtime_names()]


def _runs(schedule: str) -> list[str]:
    return [runtime.name for runtime in _runtimes() if schedule in runtime.schedules]


SCHEDULE: Final = (Column("name", str, "name"), Column("runtimes", _runs, "runtimes that run it", _names))
KINDS: Final[Mapping[str, tuple[tuple[Column, ...], Callable[[], Iterable[Any]]]]] = {
    "accelerators": (ACCELERATOR, lambda: ACCELERATORS),
    "models": (MODEL, lambda: ENTRIES),
    "runtimes": (RUNTIME, _runtimes),
    "schedules": (SCHEDULE, lambda: SCHEDULES),
}


def catalog(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="accelerators, models, runtimes or schedules.")],
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """List what is known by name."""
    if kind not in KINDS:
        raise UsageError(f"there is no catalog of {kind[:40]!r}", hint=nearest(kind[:40], KINDS))
    columns, entries = KINDS[kind]
    rows = [{column.key: column.of(entry) for column in columns} for entry in entries()]
    if as_json:
        screen.write(to_text({kind: rows}))
    elif quiet:
        screen.write("".join(f"{row['name']}\n" for row in rows))
    else:
        columns = tuple(column for column in columns if column.title)
        cells = [tuple(column.shown(row[column.key]) for column in columns) for row in rows]
        numbers = tuple(i for i, column in enumerate(columns) if column.is_number)
        screen.show(plain_table(tuple(column.title for column in columns), cells, right=numbers))


main = verb(catalog, name="catalog")
