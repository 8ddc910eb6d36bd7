"""Stages: which operators, on which devices, under which trees, and what they keep (DESIGN section
2, A_pipe and memory choices).
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.plan.split import Exchange, Split


class How(StrEnum):
    """What happens to activations that are not kept on the device."""

    RECOMPUTE = "recompute"
    HOST = "host"
    NVME = "nvme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Part of a chunk: the named block or operator (`count` 0), or the next `count` blocks of the
    sequence called `name` (empty = any).
    """

    name: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Operator classes (none = all) and, optionally, a range of blocks counted inside the chunk
    (first, last).
    """

    classes: tuple[str, ...] = ()
    blocks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A tree for the selected operators; later placements override earlier ones. `offset` shifts
    the stage's base device.
    """

    select: Selector
    split: Split | None
    offset: int = 0
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What happens to the activations of blocks first..last of a chunk.

    Args:
        operators: classes or operator names; ``full`` is the whole block.
        unit: blocks recomputed as one (one saved input a unit).
        percent: share that is moved.
    """

    blocks: tuple[int, int]
    how: How
    operators: tuple[str, ...]
    unit: int = 1
    percent: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One chunk of a lane: its items in topological order, its first device, its trees and what it
    keeps.

    `every`: it runs once for that many microbatches of the lane (an encoder with a larger
    microbatch).
    """

    items: tuple[Item, ...]
    base: int
    placements: tuple[Placement, ...]
    keeps: tuple[Keep, ...] = ()
    every: int = 1
