"""Operators without communication, whose backward is autograd of their forward function."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass

OperatorFunction = Callable[[OperatorShare, tuple[Values, ...], Weights], Values]


def detached_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a leaf of a new autograd graph, sharing its memory; integers unchanged."""
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


def autograd_gradients(
    outputs: Values, leaves: list[torch.Tensor], grads: Gradients
) -> list[torch.Tensor]:
    """Gradients of the leaves; zeros for leaves that the outputs do not depend on."""
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if not leaves or not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    # The gradient of a sum needs no starting value. Given one, PyTorch imports its
    # symbolic shapes, which takes seconds.
    leaf_grads = torch.autograd.grad(
        [(output * grad).sum() for output, grad in pairs], leaves, allow_unused=True
    )
    return [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, leaf_grads, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutogradOperator:
    """Operator whose backward runs `function` again on detached inputs under autograd.

    No autograd graph outlives a call.

    Args:
        function: computes the operator's output from (place, inputs, weights).
    """

    function: OperatorFunction

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Run the function without autograd, and save its inputs.

        See `Numerics`.
        """
        yield from ()
        with torch.no_grad():
            outputs = self.function(place, inputs, weights)
        return outputs, SavedTensors(inputs=inputs)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Input gradients by running the function again under autograd.

        See `Numerics`.
        """
        yield from ()
        with torch.enable_grad():
            inputs = tuple(
                tuple(detached_leaf(value) for value in values) for values in saved.inputs
            )
            outputs = self.function(place, inputs, weights)
            leaves = [value for values in inputs for value in values if value.requires_grad]
            leaf_grads = iter(autograd_gradients(outputs, leaves, grads))
        return tuple(
            tuple(next(leaf_grads) if value.requires_grad else None for value in values)
            for values in inputs
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Parameter gradients by running the function again under autograd.

        See `Numerics`.
        """
        yield from ()
        names = [p.name for p in place.operator.parameters if p.trainable]
        if not names:
            return {}
        with torch.enable_grad():
            leaves = {name: detached_leaf(weights[name]) for name in names}
            outputs = self.function(place, saved.inputs, {**weights, **leaves})
            weight_grads = autograd_gradients(outputs, list(leaves.values()), grads)
        return dict(zip(names, weight_grads, strict=True))
