"""Named formats of the report's numbers: from a JSON value to the text that the page shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardwright import units
from shardwright.report.pictures.guide.break_evens_picture_content import (
    factor_of_nearest_change,
)

ABSENT: Final = "-"
"""Text of a value that is null."""


def _signed_percent(fraction: float) -> str:
    """Text of a fraction as a percentage with its sign: ``+1.3 %``."""
    return f"{100 * fraction:+.1f} %"


def _days(days: float) -> str:
    """Text of a number of days, with one decimal below 100."""
    return f"{days:,.0f} days" if days >= 100 else f"{days:.1f} days"


def _outcomes(rules_json: Any) -> list[str]:
    """Outcome of each rule of a guide that has a verdict."""
    return [rule["verdict"]["outcome"] for rule in rules_json if rule["verdict"]]


FORMATS: Final[dict[str, Callable[[Any], str]]] = {
    "text": str,
    "command": str,
    "count": lambda value: f"{value:,.0f}",
    "short_count": lambda value: units.format_count(value),
    "parameters": lambda value: units.format_parameters(value),
    "seconds": lambda value: units.format_seconds(value),
    "bytes": lambda value: units.format_bytes(value),
    "dollars": lambda value: units.format_dollars(value),
    "percent": lambda value: units.format_percent(value),
    "whole_percent": lambda value: units.format_percent(value, digits=0),
    "signed_percent": _signed_percent,
    "days": _days,
    "yes_no": lambda value: "yes" if value else "no",
    "number": lambda value: f"{value:.4g}",
    "rate": lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}",
    "factor": lambda value: f"{value:.4g} times",
    "gigabytes_per_s": lambda value: f"{value / units.GIGA:.4g} GB/s",
}
"""Function of each format; a sentence or table names the format of each number."""
SUMMARIES: Final[dict[str, Callable[[Any], str]]] = {
    "judged_rules": lambda rules: str(len(_outcomes(rules))),
    "rules_that_hold": lambda rules: str(_outcomes(rules).count("holds")),
    "factor_of_nearest_change": lambda guide: f"{factor_of_nearest_change(guide):.3g} times",
}
"""Function of each format of a guide's list of rules, or of the guide; scripts do not have them."""


def formatted(value: Any, form: str) -> str:
    """Text of a JSON value in a format; null is `ABSENT`."""
    return ABSENT if value is None else (FORMATS | SUMMARIES)[form](value)
