"""Activation operators: GELU, SwiGLU, and gates after attention, scans and shared experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.operator_with_autograd_backward import AutogradOperator
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    input_gradients,
    require_gradient,
)
from shardwright.execute.numerics.layers.activation_functions import (
    activation_gradient,
    activation_name,
    apply_activation,
    clamped_gate,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass

GATE_EXTENT = {1: 0, 2: 1, 4: 3, 5: 0, 6: 3}
"""Number of the extent that is the gate, by the number of extents of a fused projection.

2: x z (Mamba-1). 4: q k v gate (gated attention). 5: z x B C dt (Mamba-2). 6: q k v z b a (delta
net). 1: a projection of its own.
"""


def apply_activation_operator(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
) -> Values:
    """Activation f(x), gated f(x) y of two extents, or x times act(gate) of two inputs.

    f(x) y is SwiGLU or GeGLU.

    act is silu after a scan and sigmoid elsewhere. A gate narrower than x holds one score for each
    head (or token). Tensors after the extents (counts of routed rows) pass through.
    """
    operator = place.operator
    if len(inputs) == 1:
        (values,) = inputs
        count = len(operator.reads)
        if operator.clamped:
            return (clamped_gate(values[0], values[1], settings=place.settings), *values[count:])
        y = apply_activation(activation_name(place.settings, gated=operator.gated), values[0])
        return (y * values[1] if operator.gated else y, *values[count:])
    x, scores = inputs[0][0], inputs[1][GATE_EXTENT[len(inputs[1])]]
    gate = functional.silu(scores) if operator.klass is OperatorClass.SSM else torch.sigmoid(scores)
    return ((x.unflatten(-1, (gate.shape[-1], -1)) * gate.unsqueeze(-1)).flatten(-2),)


BY_AUTOGRAD = AutogradOperator(function=apply_activation_operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseActivation(WithoutParameters):
    """Activation operator with explicit gradients for one unclamped input, else autograd's."""

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Apply the activation operator.

        See `apply_activation_operator`.
        """
        return (yield from BY_AUTOGRAD.forward(place, inputs, weights))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Input gradients: explicit for f(x) and f(x) y, by autograd if clamped or of two inputs.

        See `Numerics`.
        """
        if len(saved.inputs) > 1 or place.operator.clamped:
            return (yield from BY_AUTOGRAD.input_grad(place, saved, grads, weights))
        (values,) = saved.inputs
        x, grad = values[0], require_gradient(grads[0])
        name = activation_name(place.settings, gated=place.operator.gated)
        if not place.operator.gated:
            return (input_gradients(values, {0: activation_gradient(name, grad, x)}),)
        return (
            input_gradients(
                values,
                {
                    0: activation_gradient(name, grad * values[1], x),
                    1: apply_activation(name, x).mul_(grad),
                },
            ),
        )
