"""Result of a plan's proof, made by `execute.proof.prove` and read without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

TOLERANCE = 1e-10
"""Largest difference of float64 numbers of about one that order of sums explains, with room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Results of a step of a plan and of the unsplit model, both in float64 on a model of the same
    structure.

    Args:
        model: the small one.
        devices: virtual ones.
        tokens: positions of each sequence.
        loss: mean over the step's tokens.
        loss_difference: from the unsplit model's.
        gradients: by parameter, the largest difference on any device, in units of the parameter's
            largest gradient (of a thousandth of the model's largest, where that is more).
        moved: by kind of communication, (requests, elements given to other devices) of all devices.
    """

    model: Model
    devices: int
    tokens: Mapping[str, int]
    loss: float
    loss_difference: float
    gradients: Mapping[str, float]
    moved: Mapping[str, tuple[int, int]]

    @property
    def worst(self) -> tuple[str, float]:
        """The parameter whose gradient differs most, and by how much."""
        return max(self.gradients.items(), key=lambda item: item[1])

    @property
    def equal(self) -> bool:
        """Loss and every gradient are the unsplit model's, but for the order of sums."""
        return abs(self.loss_difference) <= TOLERANCE and self.worst[1] <= TOLERANCE
