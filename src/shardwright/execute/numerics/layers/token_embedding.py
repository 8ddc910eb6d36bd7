"""Token embedding, with its table cut by rows (giving partial sums) or by width."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    index_tensor,
    require_gradient,
    with_last_dim,
)
from shardwright.execute.numerics.layers.linear import has_first_part
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Token embedding y = table[id] (+ positions[position] + types[0]), times a factor.

    The factor is the settings'; rows that the device does not have are zero.

    The padding row (`Settings.padding_row`) is looked up like other rows, but lookups give it no
    gradient; a tied head does. The device of the first rows adds positions and types. The table of
    relative position biases that a T5 stores here is read by no operator, so its gradient is zero.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Own partial sum: embeddings x factor (0 for ids elsewhere), + position and type rows.

        See `Numerics`.
        """
        yield from ()
        ids = with_last_dim(inputs[0][0])[..., 0]
        table = weights[place.operator.parameters[0].name]
        rows, inside = _rows(place, ids)
        y = table[rows] * _row_factors(place, inside, like=table)
        for name, kind in _other_parameters(place):
            if kind == "positions" and has_first_part(place):
                y = y + weights[name][_position_rows(place, like=ids)]
            if kind == "types" and has_first_part(place):
                y = y + weights[name][0]
        return (y,), SavedTensors(inputs=inputs)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """None for every input: token ids have no gradient.

        See `Numerics`.
        """
        yield from ()
        return (None,) * len(saved.inputs)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of token, position and type tables; lookups give the padding row no gradient.

        See `Numerics`.
        """
        yield from ()
        grad = at_least_float32(require_gradient(grads[0]))
        ids = with_last_dim(saved.inputs[0][0])[..., 0]
        rows, inside = _rows(place, ids)
        weight_grads = {
            p.name: torch.zeros_like(at_least_float32(weights[p.name]))
            for p in place.operator.parameters
            if p.trainable
        }
        table = place.operator.parameters[0].name
        if table in weight_grads:
            with_gradient = (
                inside
                if place.settings.padding_row is None
                else inside & (ids != place.settings.padding_row)
            )
            weight_grads[table].index_add_(
                0,
                rows.flatten(),
                (grad * _row_factors(place, with_gradient, like=weights[table])).flatten(0, 1),
            )
        for name, kind in _other_parameters(place):
            if name in weight_grads and kind == "positions" and has_first_part(place):
                weight_grads[name].index_add_(0, _position_rows(place, like=ids), grad.sum(0))
            if name in weight_grads and kind == "types" and has_first_part(place):
                weight_grads[name][0] = grad.sum((0, 1))
        return weight_grads


def _rows(place: OperatorShare, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row in the local vocabulary part, True if the id is in it); row 0 for ids elsewhere."""
    low, high = place.reads[0]
    inside = (ids >= low) & (ids < high)
    return torch.where(inside, ids - low, 0), inside


def _row_factors(place: OperatorShare, inside: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
    """Embedding factor (such as sqrt(hidden)) of ids in the local part; 0 for other ids.

    It is rounded to the format of `like`, as in published classes.
    """
    return inside.unsqueeze(-1) * like.new_tensor(place.settings.embed_factor)


def _position_rows(place: OperatorShare, *, like: torch.Tensor) -> torch.Tensor:
    """Rows of the position table at the share's positions, from `first_position` on."""
    return index_tensor(place.positions, like=like) + place.settings.first_position


def _other_parameters(place: OperatorShare) -> list[tuple[str, str]]:
    """(name, last part of the name) of the parameters other than the token table."""
    return [(p.name, p.name.rpartition(".")[2]) for p in place.operator.parameters[1:]]
