"""Sums of streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwright.execute.numerics.boxes import given, only, returned
from shardwright.execute.numerics.linear import sum_of
from shardwright.execute.numerics.protocol import Gradients, SavedTensors, Values, Weights
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """y = the sum of the inputs' first extents (no dropout: it would not be equal to another plan's)."""

    def forward(self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        return (sum_of([values[0] for values in inputs]),), SavedTensors(inputs=tuple(only(values) for values in inputs))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        return tuple(returned(values, {0: given(grads[0])}) for values in saved.inputs)

    def weight_grad(self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}
