"""Orders of a plan's actions: a schedule's name, or a table with every device's actions (DESIGN
section 2, L_pipe).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from shardwright.lazy_dataclass import dataclass


class Kind(StrEnum):
    """Kinds of action, in PyTorch's letters: forward, input gradient, weight gradient, full
    backward, recompute.
    """

    F = "F"
    I = "I"  # noqa: E741 - PyTorch's letter
    W = "W"
    B = "B"
    R = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One chunk's work on one microbatch (and slice). `lane` indexes the order's lanes."""

    chunk: int
    kind: Kind
    microbatch: int
    lane: int = 0
    slice: int = 0


Entry: TypeAlias = Action | tuple[Action, Action]
"""One action, or a pair that runs overlapped."""


def actions_of(entry: Entry) -> tuple[Action, ...]:
    """The one or two actions of an entry of a row."""
    return entry if isinstance(entry, tuple) else (entry,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOrder:
    """An order given by a schedule's name, with its parameters, for the lanes named."""

    schedule: str
    lanes: tuple[str, ...]
    parameters: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An order given action by action: one row for each class of devices that run the same stages,
    keyed by the class's lowest device.
    """

    lanes: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Entry, ...]], ...]
