"""Patch embedding: a linear layer over patches, with position tables and a class token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
    require_gradient,
)
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import (
    image_grid,
    interpolated_rows,
    patch_coordinates,
    rows_by_axis,
)
from shardwright.execute.numerics.layers.linear import Linear, has_first_part
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import PositionAxes

LINEAR = Linear()


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEmbedding:
    """Patch embedding y = x W (+ b) + positions[position], and + class at position 0.

    The class token's patch is zeros. Otherwise as `Linear`.

    A table that is a grid is interpolated to the image's grid (`Settings.stretched`): a patch gets
    a fixed weighted sum of the table's rows, and a row's gradient is the transposed sum. With two
    tables by axis, a patch gets a row of each. The device of the first part of the contracted dim
    adds the tables, and has their gradients.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Project patches, add position rows, and the class token to the zero patch at position 0.

        See `Numerics`.

        Raises:
            StrategyError: as `Linear.forward`.
        """
        (y,), saved = yield from LINEAR.forward(place, inputs, weights)
        for name, kind in _patch_tables_added_here(place):
            positions = index_tensor(place.positions, like=y)
            y = y + (
                _rows(place, positions, weights[name])
                if kind == "positions"
                else (positions == 0).to(y.dtype).unsqueeze(-1) * weights[name]
            )
        return (y,), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """None for every input: image data have no gradient.

        See `Numerics`.
        """
        yield from ()
        return (None,) * len(saved.inputs)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of the projection, the position tables and the class token.

        See `Numerics`.
        """
        weight_grads = yield from LINEAR.weight_grad(place, saved, grads, weights)
        summed = require_gradient(grads[0]).sum(0)
        positions = index_tensor(place.positions, like=summed)
        for name, kind in _patch_tables_added_here(place):
            if name in weight_grads and kind == "positions":
                weight_grads[name] = _table_gradient(place, positions, summed, like=weights[name])
            elif name in weight_grads:
                weight_grads[name] = summed[positions == 0].sum(0)
        return weight_grads


def _rows(place: OperatorShare, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(positions, elements) position embeddings: table rows, or sums of weighted rows."""
    if place.settings.stretched is None:
        return table[positions]
    rows_sum = table.new_zeros(len(positions), table.shape[1])
    # One row for each patch at a time: all rows of a patch together are up to sixteen times as
    # large.
    for rows, weights in _weighted_table_rows(place, positions, like=table):
        rows_sum += table[rows] * weights
    return rows_sum


def _table_gradient(
    place: OperatorShare, positions: torch.Tensor, grad: torch.Tensor, *, like: torch.Tensor
) -> torch.Tensor:
    """Gradient of a position table, in the shape of `like`, from gradients of its positions."""
    table_grad = torch.zeros_like(like)
    if place.settings.stretched is None:
        return table_grad.index_add_(0, positions, grad)
    for rows, weights in _weighted_table_rows(place, positions, like=grad):
        table_grad.index_add_(0, rows, grad * weights)
    return table_grad


def _weighted_table_rows(
    place: OperatorShare, positions: torch.Tensor, *, like: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Iterate over (row numbers, weights), a pair for each table row that a position sums."""
    image, table = place.settings.image, place.settings.stretched
    assert image is not None, "the image tower's settings are known"
    assert table is not None, "the position table is a grid"
    grid = image_grid(image, patches=place.length)
    where = patch_coordinates(positions, columns=grid[1], block=image.block)
    if isinstance(table, PositionAxes):
        rows, weights = rows_by_axis(where, grid, table, dtype=like.dtype)
    else:
        rows, weights = interpolated_rows(where, grid, table, dtype=like.dtype)
    yield from zip(rows.unbind(1), weights.unsqueeze(2).unbind(1), strict=True)


def _patch_tables_added_here(place: OperatorShare) -> list[tuple[str, str]]:
    """(name, kind) of position and class-token tables; [] unless this device has input 0."""
    named = [(p.name, p.name.rpartition(".")[2]) for p in place.operator.parameters]
    return (
        [(name, kind) for name, kind in named if kind in ("positions", "class")]
        if has_first_part(place)
        else []
    )
