"""``shardwright catalog``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from shardwright.schedules.registry import SCHEDULES
from shardwright.units import GIB, TERA, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: key in JSON, title on the screen, how a value is shown, and whether it is a number."""

    key: str
    title: str
    shown: Callable[[Any], str] = str
    is_number: bool = False


def _names(values: Sequence[str]) -> str:
    return ", ".join(values)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value else "-"


def _accelerators() -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    columns = (
        Column(key="name", title="name"),
        Column(key="vendor", title="vendor"),
        Column(key="memory_gib", title="GiB", shown=_whole, is_number=True),
        Column(key="memory_bandwidth_tb_per_s", title="TB/s", shown=lambda v: f"{v:.2f}", is_number=True),
        Column(key="bf16_tflops", title="bf16 TFLOP/s", shown=_whole, is_number=True),
        Column(key="fp8_tflops", title="fp8 TFLOP/s", shown=_whole, is_number=True),
        Column(key="evidence", title="known by"),
        Column(key="aliases", title="also", shown=_names),
    )
    rows = [
        {
            "name": a.name,
            "vendor": a.vendor,
            "memory_gib": a.memory_bytes / GIB,
            "memory_bandwidth_tb_per_s": a.memory_bandwidth / TERA,
            "bf16_tflops": a.peak(Dtype.BF16) / TERA,
            "fp8_tflops": a.peak(Dtype.FP8) / TERA,
            "evidence": a.origin.evidence.value,
            "reference": a.origin.reference,
            "aliases": list(a.aliases),
        }
        for a in ACCELERATORS
    ]
    return columns, rows


def _models() -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    columns = (
        Column(key="name", title="name"),
        Column(key="parameters", title="parameters", shown=format_count, is_number=True),
        Column(key="architecture", title="architecture"),
        Column(key="aliases", title="also", shown=_names),
    )
    rows = [
        {
            "name": e.names[0],
            "parameters": e.parameters,
            "architecture": ", ".join(e.config.get("architectures", [])),
            "reference": e.source,
            "aliases": list(e.names[1:]),
        }
        for e in ENTRIES
    ]
    return columns, rows


def _runtimes() -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    columns = (
        Column(key="name", title="name"),
        Column(key="framework", title="framework"),
        Column(key="version", title="version"),
        Column(key="released", title="released"),
        Column(key="schedules", title="schedules", shown=_names),
        Column(key="aliases", title="also", shown=_names),
    )
    rows = [
        {
            "name": r.name,
            "framework": r.framework,
            "version": r.version,
            "released": r.released,
            "schedules": list(r.schedules),
            "aliases": list(r.aliases),
        }
        for r in map(load_runtime, runtime_names())
    ]
    return columns, rows


def _schedules() -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    runtimes = [load_runtime(name) for name in runtime_names()]
    rows = [{"name": s, "runtimes": [r.name for r in runtimes if s in r.schedules]} for s in SCHEDULES]
    return (Column(key="name", title="name"), Column(key="runtimes", title="runtimes that run it", shown=_names)), rows


KINDS: Final = {"accelerators": _accelerators, "models": _models, "runtimes": _runtimes, "schedules": _schedules}


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
    columns, rows = KINDS[kind]()
    if as_json:
        screen.write(to_text({kind: rows}))
    elif quiet:
        screen.write("".join(f"{row['name']}\n" for row in rows))
    else:
        cells = [tuple(column.shown(row[column.key]) for column in columns) for row in rows]
        numbers = tuple(i for i, column in enumerate(columns) if column.is_number)
        screen.show(plain_table(tuple(column.title for column in columns), cells, right=numbers))


main = verb(catalog, name="catalog")
