"""Laws of the tables of settings: a name and a field stand once, and what is written is read."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.frameworks.documents.dotted_settings import settings_of_document
from shardwright.frameworks.export.nest_dotted_settings import nested_sections
from shardwright.frameworks.registry import READERS, TARGETS
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    values_of,
    written_settings,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import PERCENT, TEXT, WHOLE
from shardwright.frameworks.settings.setting_verdicts import Verdict


def tables() -> dict[str, SettingTable]:
    """Tables by framework: of the readers, and of export targets without a reader."""
    known = {name: table for name in READERS if (table := READERS.load(name).settings) is not None}
    for name in [name for name in TARGETS if name not in READERS]:
        module = TARGETS.targets[name].split(":")[0].rpartition(".")[0]
        known[name] = import_module(f"{module}.settings").SETTINGS
    return known


TABLES = tables()
NUMBERS = st.integers(1, 10**6)
OWN_FORMS: dict[str, st.SearchStrategy[Any]] = {
    "device_samples": st.integers(1, 4096).map(lambda number: number / 16),
    "shards": NUMBERS,
    "global_batch": NUMBERS,
    "is_compiled": st.booleans(),
}
"""Values of fields whose form is a framework's own, but degrees."""
LISTS = {"modules"}
"""Fields that are written as lists and read as text."""


def written_rows(table: SettingTable) -> list[KnownSetting]:
    return [
        row
        for row in table.rows
        if row.field
        and row.verdict is Verdict.UNDERSTOOD
        and row.when is not WhenWritten.NEVER
        and row.field not in LISTS
    ]


def values_for(row: KnownSetting) -> st.SearchStrategy[Any]:
    if row.form.values:
        return st.sampled_from(row.form.values)
    if row.form is TEXT:
        return st.sampled_from(("a2a", "full", "x y"))
    if row.form is PERCENT:
        return st.integers(0, 100)
    if row.form is WHOLE:
        return NUMBERS
    return OWN_FORMS.get(row.field, NUMBERS)


@pytest.mark.parametrize("framework", TABLES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(framework: str, data: st.DataObject) -> None:
    table = TABLES[framework]
    rows = written_rows(table)
    values = {
        row.field: data.draw(values_for(row), label=row.name)
        for row in rows
        if data.draw(st.booleans())
    }
    text = json.dumps(nested_sections(written_settings(table, values)))
    found = values_of(table, settings_of_document(text, ".json", "a.json") if text != "{}" else {})
    for row in rows:
        assert found[row.field] == values.get(row.field, row.absent), (row.name, text)


@pytest.mark.parametrize("framework", TABLES)
def test_a_value_is_written_unless_files_have_it_without(framework: str) -> None:
    table = TABLES[framework]
    for row in written_rows(table):
        if row.absent is not None:
            written = dict(written_settings(table, {row.field: row.absent}))
            assert (row.name in written) == (row.when is WhenWritten.ALWAYS)


@pytest.mark.parametrize("framework", TABLES)
def test_names_and_fields_stand_once(framework: str) -> None:
    table = TABLES[framework]
    names = [row.key for row in table.rows]
    fields = [row.field for row in table.rows if row.field]
    assert len(set(names)) == len(names)
    assert len(set(fields)) == len(fields)
    verdicts_on = (table.understood, table.ignored, table.unmodelled)
    for number, one in enumerate(verdicts_on):
        for other in verdicts_on[number + 1 :]:
            assert not one.keys() & other.keys()
    assert table.version
