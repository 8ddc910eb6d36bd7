"""How the project's dataclasses stand in a file: their types are the schema, in both directions.

A dataclass is an object of its fields, pairs of a name and numbers are an object, an enumeration is its value, a tuple a list, a grid its
notation, a general plan what `strategy.text.json` makes of it. `Names` says where a field has another name in the file.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any

from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.strategy.text.json import plan_to_json

Names = Mapping[type, Mapping[str, str]]
"""Names of a class's fields in a file: ``outer.inner`` stands in an object of its own, an empty name is left out."""


@cache
def fields_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """(field, type) of a dataclass."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def mapped(hint: Any) -> Any:
    """The type of the values where a type is pairs that stand as an object, else None."""
    inner = typing.get_args(typing.get_args(hint)[0]) if typing.get_origin(hint) is tuple else ()
    return inner[1] if len(inner) == 2 and inner[0] is str and inner[1] is not str else None


def filed(value: Any, *, names: Names, hint: Any = None) -> Any:
    """`value` in JSON's own types."""
    if mapped(hint) is not None:
        return {key: filed(item, names=names) for key, item in value}
    if isinstance(value, tuple):
        return [filed(item, names=names) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Grid):
        return print_grid(value)
    if isinstance(value, Plan):
        return plan_to_json(value)
    if not dataclasses.is_dataclass(value):
        return value
    kind: Any = type(value)
    found: dict[str, Any] = {}
    for field, inner in fields_of(kind):
        name = names.get(kind, {}).get(field, field)
        outer, _, last = name.rpartition(".")
        if name:
            (found.setdefault(outer, {}) if outer else found)[last] = filed(getattr(value, field), names=names, hint=inner)
    return found
