"""Table of a framework's settings, which its reader and its exporter share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from shardwright.frameworks.settings.refuse_unpriced_settings import Refusal
from shardwright.frameworks.settings.setting_values_from_and_to_text import WHOLE, ValueForm
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import by_name
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid

Pair = tuple[str, object]
"""(dotted name of a setting, value)."""


class WhenWritten(StrEnum):
    """Values of a field at which an exporter writes the setting."""

    ALWAYS = "at every value"
    UNLESS_ABSENT = "at every value but that of files without the setting"
    NEVER = "at no value: it is read alone"


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A framework's setting that is read into a field, or written from one.

    Args:
        name: the framework's name, with dots between sections.
        means: its meaning, or with another verdict its reason, in words for screens.
        field: field that the setting sets: of `Grid`, or a name that reader and exporter share.
        form: form of the value.
        absent: value of the field where files do not set it; None = no value.
        when: values at which the setting is written.
        verdict: verdict on the setting in a launch; UNKNOWN = not counted.
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
        """Name of the setting as launch files are read: lower case with dashes."""
        return self.name.replace("_", "-").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTable:
    """All known settings of a framework at one version.

    Args:
        version: version of the framework.
        rows: settings that are read into fields or written, in the order of the files.
        understood: name of a setting that is read -> its meaning.
        ignored: name, or prefix that ends in ``*``, -> reason why the setting has no effect.
        unmodelled: name -> effect that is not counted.
        refused: name -> effect that is not priced.
    """

    version: str
    rows: tuple[KnownSetting, ...]
    understood: Mapping[str, str]
    ignored: Mapping[str, str]
    unmodelled: Mapping[str, str]
    refused: Mapping[str, Refusal]


def degree(name: str, axis: str) -> KnownSetting:
    """Setting of a grid axis's degree: always written, and 1 where files lack it."""
    return KnownSetting(name, axis, axis, absent=1, when=WhenWritten.ALWAYS)


def of_section(section: str, *rows: KnownSetting) -> tuple[KnownSetting, ...]:
    """Rows of a table with the prefix `section` (with its dot) put before each setting's name."""
    return tuple(replace(row, name=section + row.name) for row in rows)


def setting_table(
    *rows: KnownSetting,
    version: str,
    ignored: Mapping[str, str] = MappingProxyType({}),
    unmodelled: Mapping[str, str] = MappingProxyType({}),
    refused: Mapping[str, Refusal] = MappingProxyType({}),
) -> SettingTable:
    """Setting table from rows, plus names without rows: ignored, unmodelled or refused.

    Args:
        ignored: reason why settings have no effect -> their names, separated by spaces.
        unmodelled: effect of settings that is not counted -> their names.
    """

    def reasons_of(verdict: Verdict, reasons: Mapping[str, str]) -> Mapping[str, str]:
        """Name -> reason, of the rows with a verdict and of the names in `reasons`."""
        reasons_of_rows = {
            row.key: row.means for row in rows if row.verdict is verdict and row.means
        }
        return MappingProxyType({**reasons_of_rows, **by_name(reasons)})

    return SettingTable(
        version=version,
        rows=rows,
        understood=reasons_of(Verdict.UNDERSTOOD, {}),
        ignored=reasons_of(Verdict.IGNORED, ignored),
        unmodelled=reasons_of(Verdict.UNKNOWN, unmodelled),
        refused=refused,
    )


def values_of(table: SettingTable, arguments: Arguments) -> dict[str, Any]:
    """Field -> value, read from a launch's settings by the table's forms, or the field's default.

    Raises:
        DataError: a value does not have the form of its setting.
    """
    values: dict[str, Any] = {}
    for row in table.rows:
        if row.key in arguments and row.field and row.verdict is Verdict.UNDERSTOOD:
            values[row.field] = row.form.read(row.key, arguments[row.key])
        else:
            values.setdefault(row.field, row.absent)
    return values


def written_settings(table: SettingTable, values: Mapping[str, Any]) -> Iterator[Pair]:
    """Yield (name, value to write) in the table's order; no None, defaults only of ALWAYS rows.

    A field without a value, or with None, is not written.
    """
    for row in table.rows:
        value = values.get(row.field)
        if value is None or row.when is WhenWritten.NEVER:
            continue
        if row.when is WhenWritten.ALWAYS or value != row.absent:
            yield row.name, row.form.write(value)


def in_section(settings: Iterable[Pair], section: str) -> Iterator[Pair]:
    """Yield the settings whose names start with ``SECTION.``."""
    return (pair for pair in settings if pair[0].startswith(f"{section}."))


_AXES: Final = tuple(field.name for field in fields(Grid))


def grid_values(grid: Grid) -> dict[str, Any]:
    """Field name -> value of a grid."""
    return {name: getattr(grid, name) for name in _AXES}


def only_of_grid(values: Mapping[str, Any]) -> dict[str, Any]:
    """Field of `Grid` -> value, of those of `values` that are not None."""
    return {name: values[name] for name in _AXES if values.get(name) is not None}


def half_settings(table: SettingTable | None, precision: str) -> tuple[tuple[str, str], ...]:
    """((name, value),) of the setting that turns on `precision`, bf16 or fp16; () if not in table.

    Empty where the table has none.
    """
    for row in table.rows if table is not None else ():
        if row.field == precision:
            return ((row.key, "true"),)
        if row.field == "precision":
            return ((row.key, str(row.form.write(precision))),)
    return ()
