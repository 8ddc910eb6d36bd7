"""Rotary position embedding that pairs element i with element i + half.

Su et al. 2021 (arXiv 2104.09864), section 3.2.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
    input_gradients,
    keep_extents,
    require_gradient,
)
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import (
    image_grid,
    patch_coordinates,
)
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines_and_sines,
    rotary_rates,
    rotary_scale,
    rotate_pairs,
    rotate_parts,
    rotated_pair_count,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import GridRotary, Settings, TextRotary
from shardwright.program.layout.tensor_layout import Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary(WithoutParameters):
    """Rotary positions: rotate queries and keys by their global positions; values pass through.

    Backward rotates back and saves nothing.

    One input: q k v (more extents are not read). Three inputs (latent attention): q; k without
    positions and v; latent and the rotary part of the keys, one for all heads. There the last
    ``rope`` elements of a query head are rotated, and every key head is joined with the rotated
    part. Otherwise the whole head is rotated, or the share of it in the model's settings. Patches
    of an image are rotated by their rows and columns (`Settings.turns`). For a text with images, a
    time, a row and a column of every token follow the first input (`grid_positions`).
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Rotate queries and keys, and join the shared rotary part of latent attention's keys.

        See `Numerics`.
        """
        yield from ()
        axes = _axes(place, inputs)
        saved = SavedTensors(
            inputs=(
                *(keep_extents(values) for values in inputs[: len(inputs) - len(axes)]),
                *((axes,) if axes else ()),
            )
        )
        width = place.operator.reads[0].quantum
        if len(inputs) < 3:
            query, key, *values = inputs[0]
            return (
                _rotated(query, place, width, width, axes=axes),
                _rotated(key, place, width, width, axes=axes),
                values[0] if values else key,
            ), saved
        (query, *_), (plain, value), (_, rope) = inputs
        shared = _rotated(rope, place, rope.shape[-1], rope.shape[-1], whole_head=False)
        key = join_rotary_keys(plain, shared, head=width)
        return (_rotated(query, place, width, rope.shape[-1]), key, value), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients rotated back, summed over heads for a shared rotary part.

        See `Numerics`.
        """
        yield from ()
        query, key, value = (require_gradient(g) for g in grads)
        width = place.operator.reads[0].quantum
        if len(saved.inputs) < 3:
            axes = _axes(place, saved.inputs)
            rotated_back = tuple(
                _rotated(part, place, width, width, sign=-1, axes=axes) for part in (query, key)
            )
            parts = (
                {0: rotated_back[0], 1: rotated_back[1], 2: value}
                if len(saved.inputs[0]) > 2
                else {0: rotated_back[0], 1: rotated_back[1] + value}
            )
            return (input_gradients(saved.inputs[0], parts), *(None for _ in axes))
        rope = saved.inputs[2][1].shape[-1]
        heads = key.unflatten(-1, (-1, width))
        shared = _rotated(heads[..., -rope:].sum(-2), place, rope, rope, sign=-1, whole_head=False)
        return (
            input_gradients(saved.inputs[0], {0: _rotated(query, place, width, rope, sign=-1)}),
            input_gradients(saved.inputs[1], {0: heads[..., :-rope].flatten(-2), 1: value}),
            input_gradients(saved.inputs[2], {1: shared}),
        )


def join_rotary_keys(plain: torch.Tensor, rotated: torch.Tensor, *, head: int) -> torch.Tensor:
    """Keys of latent attention: every head's own part, then the rotated part that heads share.

    Heads have `head` elements each.
    """
    heads = plain.unflatten(-1, (-1, head - rotated.shape[-1]))
    return torch.cat([heads, rotated.unsqueeze(-2).expand(*heads.shape[:-1], -1)], dim=-1).flatten(
        -2
    )


@lru_cache(maxsize=4)
def _cached_angles(
    settings: Settings,
    positions: Indices,
    half: int,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions, 1, half) cosines and sines of the angles, cached for layers that rotate alike."""
    rates = rotary_rates(settings, half, length=length, device=device)
    coordinates = index_tensor(positions, like=rates)
    if isinstance(settings.turns, GridRotary) and settings.image is not None:
        coordinates = patch_coordinates(
            coordinates,
            columns=image_grid(settings.image, patches=length)[1],
            block=settings.image.block,
        )
    return cosines_and_sines(coordinates, rates, scale=rotary_scale(settings), dtype=dtype)


def _axes(place: OperatorShare, inputs: tuple[Values, ...]) -> Values:
    """Last input, (time, row, column) of each token, in texts with images; else ()."""
    return inputs[-1] if isinstance(place.settings.turns, TextRotary) else ()


def _rotated(
    x: torch.Tensor,
    place: OperatorShare,
    width: int,
    rope: int,
    *,
    sign: int = 1,
    whole_head: bool = True,
    axes: Values = (),
) -> torch.Tensor:
    """Rotate the last `rope` elements of each head, or the settings' share; `sign` -1: back.

    Heads have `width` elements.

    With `whole_head`, the settings' share of the head is rotated. `axes`: see `_axes`.
    """
    settings = place.settings.of_layers(local=place.operator.local)
    half = rotated_pair_count(settings, rope) if whole_head and rope == width else rope // 2
    if axes:
        rates = rotary_rates(settings, half, length=place.length, device=x.device)
        cos, sin = cosines_and_sines(axes[0], rates, scale=rotary_scale(settings), dtype=x.dtype)
    else:
        cos, sin = _cached_angles(settings, place.positions, half, place.length, x.device, x.dtype)
    if isinstance(settings.turns, GridRotary) and settings.turns.apart:
        return rotate_parts(x, cos, sign * sin, width=width, parts=len(settings.turns.axes))
    return rotate_pairs(x, cos, sign * sin, width=width, start=width - rope)
