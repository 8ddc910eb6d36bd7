"""The first product of a tower: patches of images, with learned positions and a class token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shardwright.execute.numerics.base.local_tensors import given, numbers
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.images.patch_grid import by_axis, grid_of, places, stretched
from shardwright.execute.numerics.layers.linear import Linear, first_part
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.settings import PositionAxes

LINEAR = Linear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """y = x W (+ b) + positions[position], and + class at position 0, whose patch is zeros; as
    `Linear` otherwise.

    A table that is a grid is stretched over the image's (`Settings.stretched`): what a patch gets
    is a fixed sum of its rows, and a row's gradient the transposed one; of two tables by axis it is
    a row of each. The device of the first part of what is contracted adds the tables, and has their
    gradients.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: as `Linear.forward`.
        """
        (y,), saved = yield from LINEAR.forward(place, inputs, weights)
        for name, kind in _learned(place):
            at = numbers(place.positions, like=y)
            y = y + (
                _rows(place, at, weights[name])
                if kind == "positions"
                else (at == 0).to(y.dtype).unsqueeze(-1) * weights[name]
            )
        return (y,), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: data have none."""
        yield from ()
        return (None,) * len(saved.inputs)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        found = yield from LINEAR.weight_grad(place, saved, grads, weights)
        summed = given(grads[0]).sum(0)
        at = numbers(place.positions, like=summed)
        for name, kind in _learned(place):
            if name in found and kind == "positions":
                found[name] = _rows_back(place, at, summed, like=weights[name])
            elif name in found:
                found[name] = summed[at == 0].sum(0)
        return found


def _rows(place: OperatorShare, at: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(positions, elements) of the table."""
    if place.settings.stretched is None:
        return table[at]
    found = table.new_zeros(len(at), table.shape[1])
    # One row of those that count for a patch at a time: all together are sixteen times as large.
    for rows, weights in _stretched(place, at, like=table):
        found += table[rows] * weights
    return found


def _rows_back(
    place: OperatorShare, at: torch.Tensor, grad: torch.Tensor, *, like: torch.Tensor
) -> torch.Tensor:
    """A table's gradient, from (positions, elements)."""
    found = torch.zeros_like(like)
    if place.settings.stretched is None:
        return found.index_add_(0, at, grad)
    for rows, weights in _stretched(place, at, like=grad):
        found.index_add_(0, rows, grad * weights)
    return found


def _stretched(
    place: OperatorShare, at: torch.Tensor, *, like: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """((positions,) rows of the table, (positions, 1) what they count for), one after another."""
    image, table = place.settings.image, place.settings.stretched
    assert image is not None, "only of towers whose numbers are known"
    assert table is not None, "only of tables that are grids"
    grid = grid_of(image, patches=place.length)
    where = places(at, columns=grid[1], block=image.block)
    if isinstance(table, PositionAxes):
        rows, weights = by_axis(where, grid, table, dtype=like.dtype)
    else:
        rows, weights = stretched(where, grid, table, dtype=like.dtype)
    yield from zip(rows.unbind(1), weights.unsqueeze(2).unbind(1), strict=True)


def _learned(place: OperatorShare) -> list[tuple[str, str]]:
    """(name, last word of it) of the tables, where the device adds them."""
    named = [(p.name, p.name.rpartition(".")[2]) for p in place.operator.parameters]
    return (
        [(name, kind) for name, kind in named if kind in ("positions", "class")]
        if first_part(place)
        else []
    )
