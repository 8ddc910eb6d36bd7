"""Result of a plan's proof, readable without PyTorch.

`execute.proof.prove_plan` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

TOLERANCE = 1e-10
"""Largest float64 difference, of numbers of about one, that a different order of sums explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProof:
    """Comparison of a plan's step with the unsplit model's, in float64 on a smaller model.

    Args:
        model: the small model.
        devices: number of virtual devices.
        tokens: positions of each sequence.
        loss: mean over the step's tokens.
        loss_difference: difference from the unsplit model's loss.
        gradients: by parameter, the largest difference on any device, in units of the parameter's
            largest gradient (of a thousandth of the model's largest, where that is more).
        moved: by kind of communication, (requests, elements sent to other devices) of all devices.
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
        """(parameter with the largest relative gradient difference, this difference)."""
        return max(self.gradients.items(), key=lambda item: item[1])

    @property
    def equal(self) -> bool:
        """True if the loss and relative gradient differences are at most `TOLERANCE` (1e-10)."""
        return abs(self.loss_difference) <= TOLERANCE and self.worst[1] <= TOLERANCE
