"""Lists of names of settings, written as text, and tables by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

Entry = TypeVar("Entry")


def names(text: str) -> tuple[str, ...]:
    """Names that are apart by spaces, in their order."""
    return tuple(text.split())


def name_set(text: str) -> frozenset[str]:
    """Names that are apart by spaces, as a set."""
    return frozenset(text.split())


def prefixed(start: str, text: str) -> str:
    """Names, each behind the same beginning, as text again."""
    return " ".join(start + name for name in names(text))


def by_name(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """Reason -> names, apart by spaces; as name -> reason."""
    return MappingProxyType(
        {name: reason for reason, text in reasons.items() for name in names(text)}
    )


def entry_of(name: str, table: Mapping[str, Entry]) -> Entry | None:
    """The entry of a name, else of the first beginning of names, which ends in ``*``; None where it
    has none.
    """
    if name in table:
        return table[name]
    starts = (key for key in table if key.endswith("*") and name.startswith(key[:-1]))
    return next((table[key] for key in starts), None)
