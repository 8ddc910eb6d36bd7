"""Lanes: a share of the batch and the stages that it goes through."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.plan.stage_splits_and_policies import Stage


class Role(StrEnum):
    """Work of a lane: training, prefill or decode."""

    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A part of the global batch, cut into equal microbatches, and the stages that run them.

       `samples` of the global batch run in `microbatches`. A stage's position is its chunk number.
    `slices` are the weights of the token slices of each
       microbatch; empty for none.
    """

    name: str
    samples: int
    microbatches: int
    stages: tuple[Stage, ...]
    slices: tuple[int, ...] = ()
    role: Role = Role.TRAIN
