"""Sums of streams (Granite's factor of what joins one: IBM 2024, ``residual_multiplier`` of its
configurations; Gemma 4's of the sum).
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.local_tensors import given, only, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.layers.linear import sum_of
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """y = the sum of the inputs' first extents (no dropout: it would not be equal to another
    plan's).

    The first of two that join a layer's stream counts `Settings.residual_factor`: 0.22 x 5 + 3 =
    4.1. A parameter of one element, which nobody trains, is a factor of the sum.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        factor, (first, *others) = _factor(place, len(inputs)), [values[0] for values in inputs]
        total = sum_of([first if factor == 1.0 else factor * first, *others])
        return (_scaled(place, total, weights),), SavedTensors(
            inputs=tuple(only(values) for values in inputs)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        grad, factor = _scaled(place, given(grads[0]), weights), _factor(place, len(saved.inputs))
        first, *others = saved.inputs
        return (
            returned(first, {0: grad if factor == 1.0 else factor * grad}),
            *(returned(values, {0: grad}) for values in others),
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


def _scaled(place: OperatorShare, x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The sum, or its gradient, times the operator's own factor."""
    return x * weights[place.operator.parameters[0].name] if place.operator.parameters else x


def _factor(place: OperatorShare, inputs: int) -> float:
    return place.settings.residual_factor if inputs == 2 and place.operator.joins_stream else 1.0
