"""Token embedding, with its table cut by rows (parts of a sum) or by width."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.local_tensors import column, fine, given, numbers
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """y = table[id] (+ positions[position] + types[0]): zero for rows that the device lacks; rows
    times the settings' factor.

    The padding row (`Settings.padding_row`) is looked up as others are, but its lookups give it no
    gradient. A head that is tied to the table gives it one. The device of the first rows adds
    positions and types. The table of relative position biases that a T5 stores here is not used by
    its attention (no operator reads it): its gradient is zero.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        ids = column(inputs[0][0])[..., 0]
        table = weights[place.operator.parameters[0].name]
        rows, inside = _rows(place, ids)
        y = table[rows] * _counted(place, inside, like=table)
        for name, kind in _others(place):
            if kind == "positions" and _first(place):
                y = y + weights[name][_learned(place, like=ids)]
            if kind == "types" and _first(place):
                y = y + weights[name][0]
        return (y,), SavedTensors(inputs=inputs)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: token ids have none."""
        yield from ()
        return (None,) * len(saved.inputs)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        grad = fine(given(grads[0]))
        ids = column(saved.inputs[0][0])[..., 0]
        rows, inside = _rows(place, ids)
        found = {
            p.name: torch.zeros_like(fine(weights[p.name]))
            for p in place.operator.parameters
            if p.trainable
        }
        table = place.operator.parameters[0].name
        if table in found:
            learned = (
                inside
                if place.settings.padding_row is None
                else inside & (ids != place.settings.padding_row)
            )
            found[table].index_add_(
                0,
                rows.flatten(),
                (grad * _counted(place, learned, like=weights[table])).flatten(0, 1),
            )
        for name, kind in _others(place):
            if name in found and kind == "positions" and _first(place):
                found[name].index_add_(0, _learned(place, like=ids), grad.sum(0))
            if name in found and kind == "types" and _first(place):
                found[name][0] = grad.sum((0, 1))
        return found


def _rows(place: OperatorShare, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row of the local table, 0 for ids outside; whether the id is inside)."""
    low, high = place.reads[0]
    inside = (ids >= low) & (ids < high)
    return torch.where(inside, ids - low, 0), inside


def _counted(place: OperatorShare, inside: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
    """What a row counts: the factor of embeddings, in the numbers of `like` as published classes
    round it, or nothing.
    """
    return inside.unsqueeze(-1) * like.new_tensor(place.settings.embed_factor)


def _learned(place: OperatorShare, *, like: torch.Tensor) -> torch.Tensor:
    """Rows of the table of positions that the tokens read."""
    return numbers(place.positions, like=like) + place.settings.first_position


def _first(place: OperatorShare) -> bool:
    low, high = place.reads[0]
    return low == 0 and high > low


def _others(place: OperatorShare) -> list[tuple[str, str]]:
    """(name, last word of it) of the parameters beside the table."""
    return [(p.name, p.name.rpartition(".")[2]) for p in place.operator.parameters[1:]]
