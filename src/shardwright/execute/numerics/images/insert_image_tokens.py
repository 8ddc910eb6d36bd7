"""Image tokens over their places in a text."""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.local_tensors import given, hollow
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.images.merged_tokens import folded, unfolded
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.settings import ImageInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """y = memory[n] where a token's number is n, x where it is -1; of an operator that `adds`, x +
    memory[n].

    Reads x, all positions of the memory, over which its tokens may lie (`Operator.folds`), and the
    numbers (`image_numbers`), which have no gradient.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: a part of elements that do not lie evenly over the patches of a token
            (rule ``execute.width``).
        """
        yield from ()
        (x,), (memory,), (order,) = inputs
        _require_even(place, memory)
        written = unfolded(memory, place.operator.folds, width=x.shape[2]).gather(
            1, order.clamp(min=0).expand(x.shape)
        )
        saved = SavedTensors(inputs=((hollow(x),), (hollow(memory),), (order,)))
        before = x if place.operator.adds else 0
        return (torch.where(order >= 0, before + written, x),), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        grad, order = given(grads[0]), saved.inputs[2][0]
        over = order >= 0
        memory, folds = saved.inputs[1][0], place.operator.folds
        back = grad.new_zeros((memory.shape[0], memory.shape[1] // folds, grad.shape[2]))
        back.scatter_add_(1, order.clamp(min=0).expand(grad.shape), torch.where(over, grad, 0))
        return (
            (grad if place.operator.adds else torch.where(over, 0, grad),),
            (folded(back, folds),),
            None,
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


def _require_even(place: OperatorShare, memory: torch.Tensor) -> None:
    (low, high), operator = place.reads[0], place.operator
    whole = (low, high) == (0, operator.reads[0].size)
    if not whole and (low % operator.folds or memory.shape[2] * operator.folds != high - low):
        raise StrategyError(
            f"{operator.name} reads elements {low} to {high - 1} of tokens, which do not lie evenly"
            f" over {operator.folds} patches",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )


def image_numbers(ids: torch.Tensor, image: ImageInput) -> torch.Tensor:
    """Of every token of a text, which image token is written over it; -1: none.

    Args:
        ids: (samples, positions), whole texts, with no more places than their images have tokens
            (`image_places.require_written`).
    """
    places = ids == image.token
    return torch.where(places, places.cumsum(1) - 1 + image.first, -1)
