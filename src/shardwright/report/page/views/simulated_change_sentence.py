"""Sentence of a view's next change, from a simulated change in the report's JSON."""

from __future__ import annotations

from typing import Any


def change_sentence(pointer: str, change_json: Any) -> str:
    """Template of the best simulated change and its gain, or that none is faster; else empty.

    Empty where no change was simulated.
    """
    if change_json is None:
        return ""
    if change_json["gain"] > 0.0:
        return (
            f"{{{pointer}/change}} saves {{{pointer}/gain:percent}} of the seconds of a sequence: a"
            f" step of {{{pointer}/sequences:count}} sequences takes {{{pointer}/step_s:seconds}}."
            f" To simulate it: {{{pointer}/command:command}}"
        )
    if change_json["simulated"] == 1:
        return (
            f"{{{pointer}/change}} is not faster: a step takes {{{pointer}/step_s:seconds}}"
            f" ({{{pointer}/difference:signed_percent}})."
            f" To simulate it: {{{pointer}/command:command}}"
        )
    return (
        f"none of {{{pointer}/simulated:count}} simulated changes is faster. The nearest,"
        f" {{{pointer}/change}}, takes {{{pointer}/step_s:seconds}}"
        f" ({{{pointer}/difference:signed_percent}}). To simulate it: {{{pointer}/command:command}}"
    )
