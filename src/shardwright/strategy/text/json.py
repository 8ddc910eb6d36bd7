"""Plans as plain JSON values, both ways, strict: unknown, missing and mistyped fields are errors that name their path.

The types of a plan are the schema: an object has a dataclass's fields (those at their default may be left out), an enumeration is its
value, a tuple is a list, a leaf of a tree is null. Placements are kept once in ``placements`` and named by number in every stage, so a
plan of 128 stages with one tree is small.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from shardwright.errors import DataError, nearest
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stages import Placement, Stage
from shardwright.strategy.text.split_notation import MAX_DEPTH

VERSION: Final = 1
_MAX_INT: Final = 2**63
_PLACEMENTS = tuple[Placement, ...]


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """`plan` as dicts, lists, strings, numbers and None, in a fixed order of keys."""
    trees: dict[tuple[Placement, ...], int] = {}
    for lane in plan.lanes:
        for stage in lane.stages:
            trees.setdefault(stage.placements, len(trees))
    body = _encode(plan, trees)
    assert isinstance(body, dict)
    return {"version": VERSION, "placements": [[_encode(p, trees) for p in placements] for placements in trees], **body}


def _encode(value: Any, trees: Mapping[tuple[Placement, ...], int]) -> Any:
    """One value; fields of dataclasses at their default are left out."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_encode(item, trees) for item in value]
    if dataclasses.is_dataclass(value):
        result: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if isinstance(value, Stage) and f.name == "placements":
                result[f.name] = trees[item]
            elif f.default is dataclasses.MISSING or item != f.default:
                result[f.name] = _encode(item, trees)
        return result
    return value


def plan_from_json(value: object) -> Plan:
    """The plan that a JSON value says; equal placements are one object.

    Raises:
        DataError: it says none; the path of the first wrong field is named.
    """
    if not isinstance(value, dict):
        raise DataError("a plan is a JSON object", hint="such as shardwright itself writes")
    fields = dict(value)
    version = fields.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise DataError(f"plan: version {str(version)[:20]} is not known", hint=f"this release reads version {VERSION}")
    listed = fields.pop("placements", None)
    if not isinstance(listed, list):
        raise DataError("plan / placements: not a list", hint="a list of lists of placements")
    interned: dict[tuple[Placement, ...], tuple[Placement, ...]] = {}
    trees = []
    for i, entry in enumerate(listed):
        decoded = _decode(_PLACEMENTS, entry, path=f"placements / {i}", trees=(), depth=0)
        trees.append(interned.setdefault(decoded, decoded))
    plan = _decode(Plan, fields, path="plan", trees=tuple(trees), depth=0)
    assert isinstance(plan, Plan)
    return plan


@lru_cache(maxsize=64)
def _field_types(kind: type) -> dict[str, tuple[Any, bool]]:
    """Field -> (type, must be given) of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {f.name: (hints[f.name], f.default is dataclasses.MISSING) for f in dataclasses.fields(kind)}


def _wrong(path: str, expected: str, value: object) -> DataError:
    return DataError(f"{path}: expected {expected}, found {type(value).__name__}", hint="see docs/notation.md")


def _decode(kind: Any, value: object, *, path: str, trees: tuple[_PLACEMENTS, ...], depth: int) -> Any:
    """`value` as an instance of the type `kind`."""
    if depth > 4 * MAX_DEPTH:
        raise DataError(f"{path[:60]}: nested too deep", hint=f"a tree is at most {MAX_DEPTH} deep")
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode(_branch(typing.get_args(kind), value, path=path), value, path=path, trees=trees, depth=depth)
    if origin is tuple:
        return _tuple(typing.get_args(kind), value, path=path, trees=trees, depth=depth)
    if kind is type(None):
        return None
    if kind is int or kind is bool or kind is str:
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _MAX_INT):
            raise _wrong(path, {int: "a count", bool: "true or false", str: "a string"}[kind], value)
        return value
    if issubclass(kind, StrEnum):
        if not isinstance(value, str) or value not in [m.value for m in kind]:
            shown = value[:40] if isinstance(value, str) else type(value).__name__
            raise DataError(f"{path}: {shown!r} is not known", hint=nearest(str(shown), [m.value for m in kind]))
        return kind(value)
    return _object(kind, value, path=path, trees=trees, depth=depth)


def _branch(kinds: tuple[Any, ...], value: object, *, path: str) -> Any:
    """The member of a union that a value of this JSON shape must be."""
    for kind in kinds:
        origin = typing.get_origin(kind)
        if (
            (kind is type(None) and value is None)
            or (origin is tuple and isinstance(value, list))
            or (isinstance(kind, type) and kind in (int, str) and type(value) is kind)
            or (isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(value, str))
            or (dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict) and _fits(kind, value, kinds))
        ):
            return kind
    raise _wrong(path, "another value", value)


def _fits(kind: type, value: dict[str, object], kinds: tuple[Any, ...]) -> bool:
    """The only dataclass of the union, or the one that has all the fields that must be given."""
    others = [k for k in kinds if dataclasses.is_dataclass(k)]
    return len(others) == 1 or all(name in value for name, (_, required) in _field_types(kind).items() if required)


def _tuple(kinds: tuple[Any, ...], value: object, *, path: str, trees: tuple[_PLACEMENTS, ...], depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(path, "a list", value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], v, path=f"{path} / {i}", trees=trees, depth=depth + 1) for i, v in enumerate(value))
    if len(value) != len(kinds):
        raise DataError(f"{path}: expected {len(kinds)} values, found {len(value)}")
    return tuple(
        _decode(k, v, path=f"{path} / {i}", trees=trees, depth=depth + 1) for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )


def _object(kind: Any, value: object, *, path: str, trees: tuple[_PLACEMENTS, ...], depth: int) -> Any:
    """A dataclass from an object with its fields."""
    if not isinstance(value, dict):
        raise _wrong(path, "an object", value)
    fields = _field_types(kind)
    for name in value:
        if name not in fields:
            raise DataError(f"{path}: unknown field {str(name)[:40]!r}", hint=nearest(str(name)[:40], fields))
    arguments: dict[str, Any] = {}
    for name, (hint, required) in fields.items():
        where = f"{path} / {name}"
        if name not in value:
            if required:
                raise DataError(f"{where} is missing", hint=f"fields: {', '.join(fields)}")
            continue
        if kind is Stage and name == "placements":
            number = value[name]
            if type(number) is not int or not 0 <= number < len(trees):
                raise DataError(f"{where}: expected the number of one of {len(trees)} placements")
            arguments[name] = trees[number]
        else:
            arguments[name] = _decode(hint, value[name], path=where, trees=trees, depth=depth + 1)
    try:
        return kind(**arguments)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
