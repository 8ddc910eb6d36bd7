"""Conversion of dataclasses to JSON values, by the types of their fields.

A dataclass is an object of its fields, pairs of a name and numbers are an object, an enumeration is
its value, a tuple a list, a grid its notation, a general plan its
`files.plan_json_form.PlanDocument`. `Names` holds the fields that have another name in the file.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any

from shardwright.files.canonical_json import SCALARS
from shardwright.files.plan_json_form import SPARSE, plan_to_document
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid

Names = Mapping[type, Mapping[str, str]]
"""Names of a class's fields in a file: ``outer.inner`` stands in an object of its own, an empty
name is left out.
"""


@cache
def typed_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """(name, resolved type) of each field of a dataclass; cached."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def default_of(kind: Any, field: str) -> Any:
    """Default value of a dataclass's field; `...` where it has none or only a default factory."""
    default = kind.__dataclass_fields__[field].default
    return ... if default is dataclasses.MISSING else default


def mapping_value_type(hint: Any) -> Any:
    """Value type of a hint of (name, value) pairs, which files store as an object; else None.

    None for any other type.
    """
    inner = typing.get_args(typing.get_args(hint)[0]) if typing.get_origin(hint) is tuple else ()
    several = (types.UnionType, typing.Union)
    return (
        inner[1]
        if len(inner) == 2
        and inner[0] is str
        and typing.get_origin(inner[1]) not in several
        and inner[1] is not str
        else None
    )


def to_json_value(value: Any, *, names: Names, hint: Any = None) -> Any:
    """Convert a dataclass, grid or plan to JSON's types; `names` rename, nest or drop fields."""
    if type(value) in SCALARS:
        return value
    if mapping_value_type(hint) is not None:
        return {key: to_json_value(item, names=names) for key, item in value}
    if isinstance(value, tuple):
        return [to_json_value(item, names=names) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Grid):
        return print_grid(value)
    if isinstance(value, Plan):
        return to_json_value(plan_to_document(value), names=names)
    if not dataclasses.is_dataclass(value):
        return value
    kind: Any = type(value)
    found: dict[str, Any] = {}
    for field, inner in typed_fields(kind):
        name = names.get(kind, {}).get(field, field)
        outer, _, last = name.rpartition(".")
        if name and not (kind in SPARSE and getattr(value, field) == default_of(kind, field)):
            (found.setdefault(outer, {}) if outer else found)[last] = to_json_value(
                getattr(value, field), names=names, hint=inner
            )
    return found
