"""Residual sums, with Granite's factor on the stream and Gemma 4's factor on the sum.

Granite: ``residual_multiplier`` of its configurations (IBM 2024).
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    input_gradients,
    keep_extents,
    require_gradient,
)
from shardwright.execute.numerics.layers.linear import sum_tensors
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual(WithoutParameters):
    """Residual sum y of the inputs' first extents, with optional factors and without dropout.

    With dropout, no two plans would give equal results.

    Where two streams join, the first is multiplied by `Settings.residual_factor`: 0.22 x 5 + 3 =
    4.1. A parameter of one element, which is not trained, is a factor of the sum.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Sum of the inputs' first extents: the stream x its factor, the sum x its learned scale.

        See `Numerics`.
        """
        yield from ()
        factor, (joining, *rest) = (
            _stream_factor(place, len(inputs)),
            [values[0] for values in inputs],
        )
        total = sum_tensors([joining if factor == 1.0 else factor * joining, *rest])
        return (_scaled(place, total, weights),), SavedTensors(
            inputs=tuple(keep_extents(values) for values in inputs)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of all inputs: the output's x the scale, the first's also x the stream factor.

        See `Numerics`.
        """
        yield from ()
        grad, factor = (
            _scaled(place, require_gradient(grads[0]), weights),
            _stream_factor(place, len(saved.inputs)),
        )
        joining, *rest = saved.inputs
        return (
            input_gradients(joining, {0: grad if factor == 1.0 else factor * grad}),
            *(input_gradients(values, {0: grad}) for values in rest),
        )


def _scaled(place: OperatorShare, x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The sum, or its gradient, times the operator's learned scale if it has one."""
    return x * weights[place.operator.parameters[0].name] if place.operator.parameters else x


def _stream_factor(place: OperatorShare, inputs: int) -> float:
    """Settings' residual factor for an operator that adds a branch to the stream; else 1."""
    return place.settings.residual_factor if inputs == 2 and place.operator.joins_stream else 1.0
