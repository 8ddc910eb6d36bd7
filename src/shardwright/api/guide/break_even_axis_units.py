"""Axes of break-evens: unit of the values, and their text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import format_bytes, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenAxis:
    """An axis of break-evens: the unit of its values in JSON, and a value's text with its unit."""

    unit: str
    text: Callable[[int], str]


def _counted(one: str, many: str) -> BreakEvenAxis:
    """Axis of whole numbers, with the words for one and for many."""
    return BreakEvenAxis(unit=many, text=lambda value: f"{value:,} {one if value == 1 else many}")


BREAK_EVEN_AXES: Final[Mapping[str, BreakEvenAxis]] = {
    "sequence length": _counted("token", "tokens"),
    "global batch": _counted("sequence a step", "sequences a step"),
    "devices": _counted("device", "devices"),
    "network of a device": BreakEvenAxis(
        unit="bytes/s", text=lambda value: f"{format_count(value)}B/s of a device's network"
    ),
    "memory of a device": BreakEvenAxis(
        unit="bytes", text=lambda value: f"{format_bytes(value)} of a device's memory"
    ),
    "requests in flight": _counted("request in flight", "requests in flight"),
    "prompt": _counted("prompt token", "prompt tokens"),
}
"""Axes by the name that break-evens have in JSON."""
