"""Ratio of two quantities of a file, which may be 0."""

from __future__ import annotations


def ratio(part: float, whole: float) -> float:
    """`part` / `whole`; 0 where the whole is 0, as only an edited file has."""
    return part / whole if whole else 0.0
