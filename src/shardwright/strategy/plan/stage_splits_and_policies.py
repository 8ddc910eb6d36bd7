"""Stages of a lane: operators, devices, split trees and activation policy.

See DESIGN, section 2, A_pipe.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.plan.operator_split_tree import Exchange, Split


class ActivationPolicy(StrEnum):
    """Treatment of activations that leave the device: recomputation, host memory or NVMe."""

    RECOMPUTE = "recompute"
    HOST = "host"
    NVME = "nvme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Part of a pipeline chunk: one named block or operator, or the next `count` blocks.

    With a `name` and no `count`, it is that block or operator. With a `count`, it is the next
    blocks of the run called `name` (empty = any run).
    """

    name: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Operators of a chunk, chosen by class (none = all) and optionally by a range of blocks.

    `blocks` is (first, last).
    """

    classes: tuple[str, ...] = ()
    blocks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Split tree of the selected operators; later placements override earlier ones.

    `offset` is added to the stage's base device. `exchange` is for attention cut by position.
    """

    select: Selector
    split: Split | None
    offset: int = 0
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Activation policy of blocks first..last of a chunk: recompute, host memory or NVMe.

    Args:
        operators: classes or operator names; ``full`` is the whole block.
        unit: blocks recomputed together (one saved input a unit).
        percent: percent of the activations that is moved.
    """

    blocks: tuple[int, int]
    how: ActivationPolicy
    operators: tuple[str, ...]
    unit: int = 1
    percent: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One chunk of a lane: its blocks in topological order, first device, split trees and policy.

    `every`: the stage runs once for that many microbatches of the lane (an encoder with a larger
    microbatch). `keeps` is its activation policy.
    """

    items: tuple[Item, ...]
    base: int
    placements: tuple[Placement, ...]
    keeps: tuple[Keep, ...] = ()
    every: int = 1
