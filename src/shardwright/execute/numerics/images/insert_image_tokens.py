"""Image tokens written over, or added to, the embeddings at their places in a text."""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    require_gradient,
    shape_placeholder,
)
from shardwright.execute.numerics.images.operators_over_merged_tokens import (
    fold_elements,
    unfold_elements,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import ImageInput


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertImageTokens(WithoutParameters):
    """Write image tokens over (or add them to) the embeddings at their places in a text.

    y = memory[n] where a token's number is n, and x where it is -1; x + memory[n] for an operator
    that `adds`.

    Reads x, all positions of the memory, whose tokens may be folded over several positions
    (`Operator.folds`), and the numbers (`image_token_numbers`), which have no gradient.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Embeddings with the image tokens written over or added.

        See `Numerics`.

        Raises:
            StrategyError: a part of elements that do not lie evenly over the patches of a token
            (rule ``execute.width``).
        """
        yield from ()
        (x,), (memory,), (order,) = inputs
        _require_even(place, memory)
        written = unfold_elements(memory, place.operator.folds, width=x.shape[2]).gather(
            1, order.clamp(min=0).expand(x.shape)
        )
        saved = SavedTensors(
            inputs=((shape_placeholder(x),), (shape_placeholder(memory),), (order,))
        )
        added_to = x if place.operator.adds else 0
        return (torch.where(order >= 0, added_to + written, x),), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of the embeddings and of the image tokens.

        See `Numerics`.
        """
        yield from ()
        grad, order = require_gradient(grads[0]), saved.inputs[2][0]
        is_image = order >= 0
        memory, folds = saved.inputs[1][0], place.operator.folds
        memory_grad = grad.new_zeros((memory.shape[0], memory.shape[1] // folds, grad.shape[2]))
        memory_grad.scatter_add_(
            1, order.clamp(min=0).expand(grad.shape), torch.where(is_image, grad, 0)
        )
        return (
            (grad if place.operator.adds else torch.where(is_image, 0, grad),),
            (fold_elements(memory_grad, folds),),
            None,
        )


def _require_even(place: OperatorShare, memory: torch.Tensor) -> None:
    """Raise StrategyError unless cut elements lie evenly over the `folds` patches of a token."""
    (low, high), operator = place.reads[0], place.operator
    is_uncut = (low, high) == (0, operator.reads[0].size)
    if not is_uncut and (low % operator.folds or memory.shape[2] * operator.folds != high - low):
        raise StrategyError(
            f"{operator.name} reads elements {low} to {high - 1} of tokens, which do not lie evenly"
            f" over {operator.folds} patches",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )


def image_token_numbers(ids: torch.Tensor, image: ImageInput) -> torch.Tensor:
    """(samples, positions): number, from `image.first` on, of each image token; -1 at text tokens.

    Args:
        ids: (samples, positions), whole texts, with no more places than their images have tokens
            (`require_image_positions`).
    """
    places = ids == image.token
    return torch.where(places, places.cumsum(1) - 1 + image.first, -1)
