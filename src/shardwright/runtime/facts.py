"""Facts written down compactly: one link for the fields that it settles, and a runtime as a variation of another."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from shardwright.runtime.runtime import Fact, Runtime

IDENTITY = ("name", "framework", "version", "released", "facts", "aliases")


def cite(link: str, *names: str, checked: bool = False, note: str = "") -> tuple[Fact, ...]:
    """One `Fact` for each of `names`, all settled by `link`."""
    return tuple(Fact(field=name, link=link, checked=checked, note=note) for name in names)


def derive(base: Runtime, *, facts: tuple[Fact, ...], aliases: tuple[str, ...] = (), **changes: Any) -> Runtime:
    """`base` with `changes`; `facts` take the place of the base's facts on the same fields.

    Raises:
        ValueError: a field is changed without a fact of its own (a mistake in a runtime file, not a user's).
    """
    named = {fact.field for fact in facts}
    unbacked = sorted(set(changes) - named - set(IDENTITY))
    if unbacked:
        raise ValueError(f"runtime {changes.get('name', base.name)}: no fact for {', '.join(unbacked)}")
    kept = tuple(fact for fact in base.facts if fact.field not in named)
    return replace(base, facts=(*kept, *facts), aliases=aliases, **changes)


def uncited(runtime: Runtime) -> tuple[str, ...]:
    """Fields of a runtime that no fact backs (identity fields apart)."""
    backed = {fact.field for fact in runtime.facts}
    return tuple(f.name for f in fields(Runtime) if f.name not in IDENTITY and f.name not in backed)
