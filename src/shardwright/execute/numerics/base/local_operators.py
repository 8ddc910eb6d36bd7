"""Operators without communication whose backward is torch's, from their forward function alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass

Function = Callable[[OperatorShare, tuple[Values, ...], Weights], Values]


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of a graph of its own that shares the tensor's memory; integers as they are."""
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


def gradients(outputs: Values, leaves: list[torch.Tensor], grads: Gradients) -> list[torch.Tensor]:
    """Gradients of the leaves; zeros for those that the outputs do not depend on."""
    pairs = [
        (o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad
    ]
    if not leaves or not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    # A sum, whose gradient needs no value: torch loads its symbolic shapes, for seconds, to look at
    # one that is given.
    found = torch.autograd.grad([(o * g).sum() for o, g in pairs], leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Runs `function` again on detached inputs in backward: the graph lives inside one call.

    Args:
        function: of (place, inputs, weights); what the operator writes.
    """

    function: Function

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        with torch.no_grad():
            outputs = self.function(place, inputs, weights)
        return outputs, SavedTensors(inputs=inputs)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        with torch.enable_grad():
            inputs = tuple(tuple(detached(v) for v in values) for values in saved.inputs)
            outputs = self.function(place, inputs, weights)
            leaves = [v for values in inputs for v in values if v.requires_grad]
            found = iter(gradients(outputs, leaves, grads))
        return tuple(
            tuple(next(found) if v.requires_grad else None for v in values) for values in inputs
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        names = [p.name for p in place.operator.parameters if p.trainable]
        if not names:
            return {}
        with torch.enable_grad():
            leaves = {name: detached(weights[name]) for name in names}
            outputs = self.function(place, saved.inputs, {**weights, **leaves})
            found = gradients(outputs, list(leaves.values()), grads)
        return dict(zip(names, found, strict=True))
