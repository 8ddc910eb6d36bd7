"""Order of a plan's pipeline actions: a schedule's name, or a table with each device's actions.

See DESIGN, section 2, L_pipe.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from shardwright.lazily_compiled_dataclass import dataclass


class Kind(StrEnum):
    """Kind of pipeline action: forward, input gradient, weight gradient, full backward, recompute.

    The letters are PyTorch's.
    """

    F = "F"
    I = "I"  # noqa: E741 - PyTorch's letter
    W = "W"
    B = "B"
    R = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Work of one pipeline chunk on one microbatch (and token slice).

    `lane` indexes the order's lanes.
    """

    chunk: int
    kind: Kind
    microbatch: int
    lane: int = 0
    slice: int = 0


Entry: TypeAlias = Action | tuple[Action, Action]
"""One action, or a pair that runs overlapped."""


def actions_of(entry: Entry) -> tuple[Action, ...]:
    """Actions of one entry of an order table: one, or the two of an overlapped pair."""
    return entry if isinstance(entry, tuple) else (entry,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOrder:
    """Pipeline order given by the name of a schedule, with its parameters, for the named lanes."""

    schedule: str
    lanes: tuple[str, ...]
    parameters: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Pipeline order given action by action, with one row for each class of devices.

    Devices of a class run the same stages; the class's lowest device is the key of the row.
    """

    lanes: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Entry, ...]], ...]
