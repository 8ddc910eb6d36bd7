"""Content of a guide's picture of break-evens: where they lie, relative to the user's own values.

The guide's JSON has no own values: they are read from its command, its number of devices and the
scale factors in the commands of the searched plans.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import log
from typing import Any, Final

from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    split_scale_factors,
)
from shardwright.lazily_compiled_dataclass import dataclass

COMPARED: Final = {"training": "the best plan", "serving": "the better of two deployments"}
"""Plan or deployment that a break-even is about, by the guide's kind."""
FORM_OF_UNIT: Final = {"bytes": "bytes", "bytes/s": "gigabytes_per_s"}
"""Format of a break-even's values by their unit; others are whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenRow:
    """A break-even.

    Args:
        pointer: JSON pointer of the break-even.
        change: property of the best plan.
        status: template of the axis and the values.
        sides: (searched value over the user's own, True if the best plan has the property).
        nearest: number of the side where the property is another than at the own value; None where
            no searched value has another.
    """

    pointer: str
    change: str
    status: str
    sides: tuple[tuple[float, bool], ...]
    nearest: int | None

    @property
    def factor(self) -> float:
        """The nearest changed value over the user's own; 1 without a change."""
        return 1.0 if self.nearest is None else self.sides[self.nearest][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvens:
    """The break-evens, the nearest change first and those without one last; sentence templates."""

    rows: tuple[BreakEvenRow, ...]
    reading: str
    next_change: str


def break_evens_content(guide_json: Any) -> BreakEvens | None:
    """Content of the picture of break-evens; None if there are none."""
    rows = [
        row
        for place, rule in enumerate(guide_json["rules"])
        if rule["break_even"] is not None
        for row in _rows(rule["break_even"], f"/rules/{place}/break_even", guide_json)
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.nearest is None, abs(log(row.factor))))
    at, nearest = rows[0].pointer, rows[0].nearest
    compared = COMPARED[guide_json["kind"]]
    if nearest is None:
        reading, next_change = f"{compared.capitalize()} changes at no searched value.", ""
    else:
        reading = (
            f"The nearest change is at {{:factor_of_nearest_change}} your value: {{{at}/sentence}}"
        )
        plan = f"{at}/sides/{nearest}/plan"
        next_change = (
            f"There {{{plan}/strategy:command}} is {compared}, with {{{plan}/tokens_per_s:rate}}"
            f" tokens a second. {{{plan}/command:command}} repeats it."
        )
    return BreakEvens(rows=tuple(rows), reading=reading, next_change=next_change)


def factor_of_nearest_change(guide_json: Any) -> float:
    """The value of the nearest change over the user's own."""
    content = break_evens_content(guide_json)
    assert content is not None
    return content.rows[0].factor


def _rows(break_even: Any, pointer: str, guide_json: Any) -> Iterator[BreakEvenRow]:
    """The row of a break-even; none where the JSON does not tell the user's own value."""
    factors = [_relative(break_even["axis"], side, guide_json) for side in break_even["sides"]]
    if not all(factors):
        return
    sides = tuple(
        (factor, side["has"]) for factor, side in zip(factors, break_even["sides"], strict=True)
    )
    form = FORM_OF_UNIT.get(break_even["unit"], "count")
    first, last = (f"{{{pointer}/sides/{number}/value:{form}}}" for number in (0, len(sides) - 1))
    if len(sides) == 2:
        words = f"from {last} on, not yet at {first}"
        if sides[0][1]:
            words = f"up to {first}, no longer at {last}"
    else:
        words = f"already at {first}" if sides[0][1] else f"at no searched value up to {first}"
    yield BreakEvenRow(
        pointer=pointer,
        change=break_even["change"],
        status=f"{{{pointer}/axis}}: {words}",
        sides=sides,
        nearest=_changed_side(factors),
    )


def _changed_side(factors: list[float]) -> int | None:
    """Number of the side beyond the change, as seen from the own value; None for one side.

    If the own value is between both, it is the nearer one.
    """
    if len(factors) < 2:
        return None
    low, high = factors
    if low < 1 < high:
        return 0 if -log(low) < log(high) else 1
    return 1 if low >= 1 else 0


def _relative(axis: str, side: Any, guide_json: Any) -> float:
    """A side's value over the user's own value on the axis; 0 where that is unknown."""
    own_words, words = (shlex.split(one["command"]) for one in (guide_json, side["plan"]))
    scaled = axis.removesuffix(" of a device")
    if scaled != axis:
        own, there = (
            float(split_scale_factors(command[3])[1].get(scaled, 1))
            for command in (own_words, words)
        )
        return there / own
    own = _own_value(axis, own_words, guide_json)
    return float(side["value"] / own) if own else 0.0


def _own_value(axis: str, words: list[str], guide_json: Any) -> int:
    """The user's own value on an axis of whole numbers; 0 where it is unknown."""
    if axis == "devices":
        numbers = (
            int(symbol["value"])
            for rule in guide_json["rules"]
            for formula in rule["formulas"]
            for symbol in formula["symbols"]
            if symbol["meaning"] == "devices"
        )
        return next(numbers, 0)
    option = {"sequence length": "--seq-len", "prompt": "--seq-len"}.get(axis, "--global-batch")
    value = int(words[words.index(option) + 1])
    return value - int(words[words.index("--osl") + 1]) if axis == "prompt" else value
