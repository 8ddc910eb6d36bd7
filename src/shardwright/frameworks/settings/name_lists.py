"""Lists of names of settings, written as text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


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
