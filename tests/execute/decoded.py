"""Tokens as text."""

from __future__ import annotations

from collections.abc import Iterable


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; those that are no bytes, as a model's larger vocabulary may give, are
    left out."""
    return bytes(t for t in tokens if 0 <= t < 256).decode(errors="replace")
