"""Orders: who does what after what (DESIGN section 2, L_pipe)."""

from __future__ import annotations

from enum import StrEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A schedule by name for the given lanes, with its parameters."""

    schedule: str
    lanes: tuple[str, ...]
    parameters: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A total order for each class of devices that take part in the same stages; the key is the
    class's lowest device.

    An entry is one action, or a pair that runs overlapped.
    """

    lanes: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Action | tuple[Action, Action], ...]], ...]
