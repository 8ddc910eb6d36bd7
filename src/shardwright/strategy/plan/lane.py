"""Lanes: which samples take which way through the devices."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.plan.stages import Stage


class Role(StrEnum):
    """What a lane does."""

    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """`samples` of the global batch, cut into equal `microbatches` (and each into `slices` by
    weight), through its own stages.

    A stage's position is its chunk number.
    """

    name: str
    samples: int
    microbatches: int
    stages: tuple[Stage, ...]
    slices: tuple[int, ...] = ()
    role: Role = Role.TRAIN
