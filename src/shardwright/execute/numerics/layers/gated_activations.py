"""Activations: GELU, SwiGLU, and the gates behind cores, scans and shared experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.execute.numerics.base.local_operators import Local
from shardwright.execute.numerics.base.local_tensors import given, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.layers.activation_functions import (
    clamped_gate,
    curve,
    curve_gradient,
    curve_of,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass

GATE_EXTENT = {1: 0, 2: 1, 4: 3, 5: 0, 6: 3}
"""Which extent of a fused projection is the gate, by how many it writes.

2: x z (Mamba-1). 4: q k v gate (gated attention). 5: z x B C dt (Mamba-2). 6: q k v z b a (delta
net). 1: a projection of its own.
"""


def activation(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """f of one extent; f(first) x second of two (GELU in its tanh form and silu, unless the
    settings have another); or, with two inputs, first x act(gate).

    The gate's act is silu behind a scan and sigmoid elsewhere; one narrower than what it scales
    holds one score a head (or a token). What follows the extents (counts of routed rows) passes
    through.
    """
    operator = place.operator
    if len(inputs) == 1:
        (values,) = inputs
        count = len(operator.reads)
        if operator.clamped:
            return (clamped_gate(values[0], values[1], settings=place.settings), *values[count:])
        y = curve(curve_of(place.settings, gated=operator.gated), values[0])
        return (y * values[1] if operator.gated else y, *values[count:])
    x, scores = inputs[0][0], inputs[1][GATE_EXTENT[len(inputs[1])]]
    gate = functional.silu(scores) if operator.klass is OperatorClass.SSM else torch.sigmoid(scores)
    return ((x.unflatten(-1, (gate.shape[-1], -1)) * gate.unsqueeze(-1)).flatten(-2),)


LOCAL = Local(function=activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseActivation:
    """`activation`, with explicit gradients where it has one input that is not clamped; else
    torch's.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        return (yield from LOCAL.forward(place, inputs, weights))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: of f(x) y, y f'(x) and f(x)."""
        if len(saved.inputs) > 1 or place.operator.clamped:
            return (yield from LOCAL.input_grad(place, saved, grads, weights))
        (values,) = saved.inputs
        x, grad = values[0], given(grads[0])
        name = curve_of(place.settings, gated=place.operator.gated)
        if not place.operator.gated:
            return (returned(values, {0: curve_gradient(name, grad, x)}),)
        return (
            returned(
                values, {0: curve_gradient(name, grad * values[1], x), 1: curve(name, x).mul_(grad)}
            ),
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}
