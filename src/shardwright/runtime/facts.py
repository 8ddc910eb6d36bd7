"""A runtime is written as statements, each a link and the values of the fields that it settles; or as another runtime and what differs."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, TypeAlias

from shardwright.runtime.runtime import Fact, Offer, Runtime

Statement: TypeAlias = tuple[tuple[Fact, Any], ...]

IDENTITY: Final = ("name", "framework", "version", "released", "facts", "offers", "own", "options", "base", "aliases")
_FIELDS: Final = {field.name: field for field in fields(Runtime) if field.name not in IDENTITY}
_SWITCHES: Final = {name for name, field in _FIELDS.items() if field.type == "bool"}
_OFF: Final = dict.fromkeys(_SWITCHES, False) | {name: f.default for name, f in _FIELDS.items() if f.default in (0, None, "none", ())}


def named(name: str, *, framework: str = "", version: str = "", released: str = "") -> dict[str, str]:
    """Who a runtime is: its catalog name, and what else is not its base's."""
    given = {"framework": framework, "version": version, "released": released}
    return {"name": name, **{key: text for key, text in given.items() if text}}


def stated(link: str, *, on: str = "", off: str = "", checked: bool = False, note: str = "", **values: Any) -> Statement:
    """What `link` settles: `values`, and, by name with spaces between, switches that are `on` and fields that are `off`.

    ``stated("https://…/layers.py", on="sequence_parallel", off="capture", gather_prefetch=1)`` makes three facts beside True,
    ``Capture.NONE`` and 1. Off is False, 0, None, ``none`` or empty; a field whose default is something else has its value written out.
    `checked` and `note` are those of `Fact`; `read` is this of a text that was read.

    Raises:
        ValueError: no such field, or it cannot be on or off (a mistake in a runtime file, not a user's).
    """
    wrong = sorted({*on.split()} - _SWITCHES | {*off.split()} - {*_OFF} | {*values} - {*_FIELDS})
    if wrong:
        raise ValueError(f"{link} cannot state {', '.join(wrong)} so")
    pairs = [*((name, True) for name in on.split()), *((name, _OFF[name]) for name in off.split()), *values.items()]
    return tuple((Fact(field=name, link=link, checked=checked, note=note), value) for name, value in pairs)


read: Final = partial(stated, checked=True)


def runtime(identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()) -> Runtime:
    """A framework of its own, with the options that it `offers`.

    Raises:
        ValueError: a field is not stated, or twice.
    """
    values, facts = _joined(identity, statements)
    missing = [name for name in _FIELDS if name not in values]
    if missing:
        raise ValueError(f"runtime {identity['name']}: no fact for {', '.join(missing)}")
    return Runtime(facts=facts, offers=offers, **values)


def derive(base: Runtime, identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()) -> Runtime:
    """`base` with what the statements change; their facts take the place of the base's facts on the same fields, `offers` that of its
    own.

    Raises:
        ValueError: a field is stated twice.
    """
    values, facts = _joined(identity, statements)
    kept = tuple(fact for fact in base.facts if fact.field not in values)
    return replace(base, facts=(*kept, *facts), offers=offers, aliases=(), **values)


def _joined(identity: dict[str, str], statements: tuple[Statement, ...]) -> tuple[dict[str, Any], tuple[Fact, ...]]:
    values, facts = settled(f"runtime {identity['name']}", statements)
    return {**identity, **values}, facts


def settled(who: str, statements: tuple[Statement, ...]) -> tuple[dict[str, Any], tuple[Fact, ...]]:
    """Values by field, and the facts, of statements that `who` makes.

    Raises:
        ValueError: a field is stated twice.
    """
    pairs = [pair for statement in statements for pair in statement]
    names = [fact.field for fact, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{who}: stated twice: {', '.join(twice)}")
    return {fact.field: value for fact, value in pairs}, tuple(fact for fact, _ in pairs)
