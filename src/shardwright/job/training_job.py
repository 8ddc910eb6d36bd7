"""A training job: sequence lengths, global batch, optimizer and number formats."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass


class OptimizerFamily(StrEnum):
    """Families of optimizers, by the states that they keep."""

    ADAMW = "adamw"
    SGD_MOMENTUM = "sgd-momentum"
    SGD = "sgd"
    MUON = "muon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer family and the dtypes of its states for every parameter.

    Args:
        master: dtype of the master copy, None if the parameter itself is updated.
        states: dtype of each state (AdamW: first and second moment).
    """

    family: OptimizerFamily = OptimizerFamily.ADAMW
    master: Dtype | None = Dtype.FP32
    states: tuple[Dtype, ...] = (Dtype.FP32, Dtype.FP32)

    @property
    def state_bytes(self) -> int:
        """Bytes of one element's master copy and optimizer states; no parameter, no gradient."""
        bits = sum(s.bits for s in self.states) + (self.master.bits if self.master else 0)
        return bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLength:
    """Number of tokens of one of a sample's sequences: ``text``, ``encoder`` or ``image``."""

    name: str
    tokens: int


OF_TEXT: Final = ("text", "teacher")
"""Sequences of a model that carry a sample's text: the model's own and a teacher's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Workload of one training step: sequence lengths, global batch, optimizer, number formats.

    Args:
        sequences: tokens of a sample by sequence name; ``text`` must be among them.
        global_batch: samples a step.
        compute: dtype of GEMMs.
        parameter: dtype of the working copy.
        activation: dtype of saved activations and stream.
        gradient_wire: dtype of gradients on the network; None = the dtype in which the runtime
            accumulates them.
        dropout: attention and hidden dropout are on (masks are saved).
        expert_imbalance: tokens of the device with the busiest experts over the mean, >= 1; these
            experts are alike.
    """

    sequences: tuple[SequenceLength, ...]
    global_batch: int
    optimizer: Optimizer = Optimizer()
    compute: Dtype = Dtype.BF16
    parameter: Dtype = Dtype.BF16
    activation: Dtype = Dtype.BF16
    gradient_wire: Dtype | None = None
    dropout: bool = False
    expert_imbalance: float = 1.0

    def tokens(self, sequence: str) -> int:
        """Tokens of a sample's sequence of that name (a teacher's: text); 0 if the job has none."""
        name = "text" if sequence in OF_TEXT else sequence
        return next((s.tokens for s in self.sequences if s.name == name), 0)

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample's text."""
        return self.tokens("text")

    @property
    def tokens_per_step(self) -> int:
        """Text tokens of the global batch."""
        return self.global_batch * self.sequence_length
