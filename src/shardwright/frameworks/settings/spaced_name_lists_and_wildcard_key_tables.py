"""Lists of setting names written as text, and tables with names or prefixes as keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

Entry = TypeVar("Entry")


def names(text: str) -> tuple[str, ...]:
    """Split a text at spaces into names, in order."""
    return tuple(text.split())


def name_set(text: str) -> frozenset[str]:
    """Split a text at spaces into a set of names."""
    return frozenset(text.split())


def prefixed(start: str, text: str) -> str:
    """Put a prefix before each name of a list, a text of names separated by spaces."""
    return " ".join(start + name for name in names(text))


def by_name(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """Invert reason -> names (separated by spaces) into name -> reason."""
    return MappingProxyType(
        {name: reason for reason, text in reasons.items() for name in names(text)}
    )


def entry_of(name: str, table: Mapping[str, Entry]) -> Entry | None:
    """Entry of a name in a table, else of the first key ``prefix*`` that fits; None if absent."""
    if name in table:
        return table[name]
    starts = (key for key in table if key.endswith("*") and name.startswith(key[:-1]))
    return next((table[key] for key in starts), None)
