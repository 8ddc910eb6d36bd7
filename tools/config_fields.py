"""Write reads.json of the model families: the fields of config.json that each builder may read.

    python tools/config_fields.py

Builders are run, not read. Each is given the configurations of the tests and of the catalog, and
each of them again with one field that it asked for left out or another value in its place: what a
builder asks for under some value of another field is found so too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwright.errors import ModelError
from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.model.families.fields.find_config_fields_no_builder_read import without_indices
from shardwright.model.families.huggingface_config import architecture_name, build_architecture
from shardwright.model.ir.config_json_field_access import Fields

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "src" / "shardwright" / "model" / "families" / "reads.json"
CONFIGS = ROOT / "tests" / "model" / "configs"
OTHERS = (None, True, False, 0, 1)
"""Values that stand in a field's place; None = it is not written."""


def configurations(*, catalog: bool = True) -> Iterator[Mapping[str, Any]]:
    """Configurations of every family: of the tests, then, much larger, of the catalog."""
    for path in sorted(CONFIGS.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))
    if catalog:
        yield from (entry.config for entry in ENTRIES)


def asked(config: Mapping[str, Any]) -> frozenset[tuple[str, str, str]]:
    """(builder, path, name) of each field that the builders of a configuration read.

    Builders that refuse the configuration count up to the refusal.
    """
    fields = Fields(config, "config")
    with suppress(ModelError, ValueError):
        build_architecture(architecture_name(fields), fields)
    found = (
        (*fields.reading.read_by(name), name)
        for name in fields.reading.names
        if fields.reading.builders
    )
    return frozenset((target, path, name.removeprefix(path)) for path, target, name in found)


def variants(
    config: Mapping[str, Any], name: str, *, others: Sequence[object]
) -> Iterator[Mapping[str, Any]]:
    """`config` with other values of the field `name` (with its path, sections between dots)."""
    first, dot, rest = name.partition(".")
    if dot:
        inner = config.get(first)
        if isinstance(inner, Mapping):
            yield from (
                {**config, first: inside} for inside in variants(inner, rest, others=others)
            )
        return
    was = config.get(name)
    for other in others:
        if type(other) is not type(was) or other != was:
            yield {
                key: value
                for key, value in {**config, name: other}.items()
                if key != name or other is not None
            }


def explored(
    listed: Iterable[Mapping[str, Any]], *, others: Sequence[object] = OTHERS
) -> dict[str, frozenset[str]]:
    """Builder -> every name that it asked for, of the configurations and their variants."""
    found: set[tuple[str, str, str]] = set()
    seen: set[frozenset[tuple[str, str, str]]] = set()
    for config in listed:
        names = asked(config)
        if names in seen:
            continue
        seen.add(names)
        found |= names
        for _, path, name in names:
            for other in variants(config, path + name, others=others):
                found |= asked(other)
    return {
        target: frozenset(without_indices(name) for one, _, name in found if one == target)
        for target in {one for one, _, _ in found}
    }


def page() -> str:
    """The text of the file."""
    lines = {
        target: " ".join(sorted(names))
        for target, names in sorted(explored(configurations()).items())
    }
    return json.dumps(lines, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
