"""The dictionary of a framework: each setting as one row, which its reader and its writer share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from shardwright.frameworks.settings.name_lists import by_name
from shardwright.frameworks.settings.unpriced_settings import Refusal
from shardwright.frameworks.settings.value_forms import WHOLE, ValueForm
from shardwright.frameworks.settings.verdicts import Verdict
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.grid import Grid

Pair = tuple[str, object]
"""Dotted name of a setting, and its value."""


class WhenWritten(StrEnum):
    """Values of its field at which a writer writes a setting."""

    ALWAYS = "at every value"
    UNLESS_ABSENT = "at every value but that of files without the setting"
    NEVER = "at no value: it is read alone"


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A setting that is read into a field, or written from one.

    Args:
        name: as the framework writes it, with dots between sections.
        means: its meaning, or with another verdict its reason, in words for screens.
        field: the field that it sets: of `Grid`, or a name that reader and writer share.
        form: of its value.
        absent: value of the field where files do not set it; None = no value.
        when: it is written.
        verdict: on the setting in a launch; UNKNOWN = it is not counted.
    """

    name: str
    means: str
    field: str = ""
    form: ValueForm = WHOLE
    absent: Any = None
    when: WhenWritten = WhenWritten.UNLESS_ABSENT
    verdict: Verdict = Verdict.UNDERSTOOD

    @property
    def key(self) -> str:
        """The name as launch files are read: lower case with dashes."""
        return self.name.replace("_", "-").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTable:
    """All settings of a framework that are known.

    Args:
        version: of the framework whose names and defaults these are.
        rows: settings that are read into fields or written, in the order of the files.
        understood: name of a setting that is read -> its meaning.
        ignored: name, or the beginning of names that ends in ``*``, -> why it changes nothing.
        unmodelled: name -> what it changes that is not counted.
        refused: name -> what it changes that is not priced.
    """

    version: str
    rows: tuple[KnownSetting, ...]
    understood: Mapping[str, str]
    ignored: Mapping[str, str]
    unmodelled: Mapping[str, str]
    refused: Mapping[str, Refusal]


def degree(name: str, axis: str) -> KnownSetting:
    """A setting that is a degree of the grid, which is always written and 1 without it."""
    return KnownSetting(name, axis, axis, absent=1, when=WhenWritten.ALWAYS)


def of_section(section: str, *rows: KnownSetting) -> tuple[KnownSetting, ...]:
    """Rows whose names are given without the beginning that all of them have."""
    return tuple(replace(row, name=section + row.name) for row in rows)


def setting_table(
    *rows: KnownSetting,
    version: str,
    ignored: Mapping[str, str] = MappingProxyType({}),
    unmodelled: Mapping[str, str] = MappingProxyType({}),
    refused: Mapping[str, Refusal] = MappingProxyType({}),
) -> SettingTable:
    """The table of a framework's rows, and of further settings that have none.

    Args:
        ignored: why settings change nothing -> their names, apart by spaces.
        unmodelled: what settings change that is not counted -> their names.
    """

    def of(verdict: Verdict, reasons: Mapping[str, str]) -> Mapping[str, str]:
        own = {row.key: row.means for row in rows if row.verdict is verdict and row.means}
        return MappingProxyType({**own, **by_name(reasons)})

    return SettingTable(
        version=version,
        rows=rows,
        understood=of(Verdict.UNDERSTOOD, {}),
        ignored=of(Verdict.IGNORED, ignored),
        unmodelled=of(Verdict.UNKNOWN, unmodelled),
        refused=refused,
    )


def values_of(table: SettingTable, arguments: Arguments) -> dict[str, Any]:
    """The value of each field that settings of a launch set; of the others that of files without.

    Raises:
        DataError: a value has not the form of its setting.
    """
    found: dict[str, Any] = {}
    for row in table.rows:
        if row.key in arguments and row.field and row.verdict is Verdict.UNDERSTOOD:
            found[row.field] = row.form.read(row.key, arguments[row.key])
        else:
            found.setdefault(row.field, row.absent)
    return found


def written_settings(table: SettingTable, values: Mapping[str, Any]) -> Iterator[Pair]:
    """Settings with their values in a file, in the order of the table; a field that has no value,
    or None, is not written.
    """
    for row in table.rows:
        value = values.get(row.field)
        if value is None or row.when is WhenWritten.NEVER:
            continue
        if row.when is WhenWritten.ALWAYS or value != row.absent:
            yield row.name, row.form.write(value)


def in_section(settings: Iterable[Pair], section: str) -> Iterator[Pair]:
    """The settings of one section."""
    return (pair for pair in settings if pair[0].startswith(f"{section}."))


_AXES: Final = tuple(field.name for field in fields(Grid))


def grid_values(grid: Grid) -> dict[str, Any]:
    """The fields of a strategy by name."""
    return {name: getattr(grid, name) for name in _AXES}


def only_of_grid(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of some values by field those of a strategy."""
    return {name: values[name] for name in _AXES if values.get(name) is not None}


def half_settings(table: SettingTable | None, precision: str) -> tuple[tuple[str, str], ...]:
    """(name, value) of the setting by which a framework computes in ``bf16`` or ``fp16``; none
    where its table has none.
    """
    for row in table.rows if table is not None else ():
        if row.field == precision:
            return ((row.key, "true"),)
        if row.field == "precision":
            return ((row.key, str(row.form.write(precision))),)
    return ()
