"""The first product of a tower: patches of images, with learned positions and a class token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwright.execute.numerics.boxes import given, numbers
from shardwright.execute.numerics.linear import Linear, first_part
from shardwright.execute.numerics.protocol import Gradients, SavedTensors, Values, Weights
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare

LINEAR = Linear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """y = x W (+ b) + positions[position], and + class at position 0, whose patch is zeros; as `Linear` otherwise.

    The device of the first part of what is contracted adds the tables, and has their gradients.
    """

    def forward(self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: as `Linear.forward`.
        """
        (y,), saved = yield from LINEAR.forward(place, inputs, weights)
        for name, kind in _learned(place):
            at = numbers(place.positions, like=y)
            y = y + (weights[name][at] if kind == "positions" else (at == 0).to(y.dtype).unsqueeze(-1) * weights[name])
        return (y,), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: data have none."""
        yield from ()
        return (None,) * len(saved.inputs)

    def weight_grad(self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        found = yield from LINEAR.weight_grad(place, saved, grads, weights)
        summed = given(grads[0]).sum(0)
        at = numbers(place.positions, like=summed)
        for name, kind in _learned(place):
            if name in found and kind == "positions":
                found[name] = torch.zeros_like(weights[name]).index_add_(0, at, summed)
            elif name in found:
                found[name] = summed[at == 0].sum(0)
        return found


def _learned(place: OperatorShare) -> list[tuple[str, str]]:
    """(name, last word of it) of the tables, where the device adds them."""
    named = [(p.name, p.name.rpartition(".")[2]) for p in place.operator.parameters]
    return [(name, kind) for name, kind in named if kind in ("positions", "class")] if first_part(place) else []
