"""Reader of the lines of a plan's text, with the numbers and names in a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from shardwright.errors import StrategyError, nearest
from shardwright.strategy.grid.parallelism_grid import MAX_DEGREE
from shardwright.strategy.plan.stage_splits_and_policies import Placement
from shardwright.strategy.text.print_plan import DOTTED, NAME

_Enum = TypeVar("_Enum", bound=StrEnum)


@dataclass(slots=True)
class PlanLineReader:
    """Reader of a text's non-empty lines in order.

    Equal tuples of placements become one object.
    """

    lines: list[tuple[int, str]]
    place: int = 0
    placements: dict[tuple[Placement, ...], tuple[Placement, ...]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Line number of the next line, as text for errors."""
        return f"line {self.lines[min(self.place, len(self.lines) - 1)][0]}" if self.lines else ""

    def next(
        self, pattern: re.Pattern[str], *, first: str | tuple[str, ...] = ""
    ) -> re.Match[str] | None:
        """Match the next line and pass it; else None, or StrategyError if it begins with `first`.

        None if the line does not start with `first`.

        Raises:
            StrategyError: the line starts with `first` but does not match.
        """
        if self.place == len(self.lines):
            return None
        text = self.lines[self.place][1]
        if first and not f"{text} ".startswith(first):
            return None
        match = pattern.fullmatch(text)
        if match is None and first:
            raise self.error(
                f"cannot read {text[:80]!r}", hint="the forms of a line are in docs/notation.md"
            )
        if match is not None:
            self.place += 1
        return match

    def error(self, message: str, *, hint: str = "") -> StrategyError:
        """Create a StrategyError located at the next line."""
        return StrategyError(message, hint=hint, path=self.where)


_Read = TypeVar("_Read")


def read_all(
    reader: PlanLineReader, read: Callable[[PlanLineReader], _Read | None]
) -> tuple[_Read, ...]:
    """Consecutive items that `read` parses, until it returns None."""
    items: list[_Read] = []
    while (item := read(reader)) is not None:
        items.append(item)
    return tuple(items)


def read_count(
    reader: PlanLineReader, digits: str, *, smallest: int = 0, largest: int = MAX_DEGREE
) -> int:
    """Convert digits of a plan text to a number; StrategyError outside `smallest`..`largest`."""
    if len(digits) > 12 or not smallest <= int(digits) <= largest:
        raise reader.error(f"{digits[:20]} is not a number from {smallest} to {largest}")
    return int(digits)


def read_names(reader: PlanLineReader, text: str) -> tuple[str, ...]:
    """Split names at commas, ``all`` alone to an empty tuple; StrategyError for an illegal name."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not DOTTED.fullmatch(name):
            raise reader.error(f"{name[:40]!r} is not a name")
    return () if names == ("all",) else names


def enum_member(reader: PlanLineReader, kind: type[_Enum], word: str) -> _Enum:
    """Member of the enum class `kind` with the value `word`; StrategyError if there is none."""
    try:
        return kind(word)
    except ValueError:
        raise reader.error(
            f"unknown {kind.__name__.lower()} {word[:40]!r}",
            hint=nearest(word[:40], [m.value for m in kind]),
        ) from None


def read_lane_names(reader: PlanLineReader, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names that can name lanes unchanged; StrategyError for any other name."""
    for name in names:
        if not NAME.fullmatch(name):
            raise reader.error(f"{name[:40]!r} is not a lane's name")
    return names
