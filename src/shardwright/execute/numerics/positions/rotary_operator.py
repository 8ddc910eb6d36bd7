"""Rotary positions (Su et al. 2021, arXiv 2104.09864, section 3.2), in the form that pairs element
i with element i + half.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from shardwright.execute.numerics.base.local_tensors import given, numbers, only, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.images.patch_grid import grid_of, places
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines,
    rotary_rates,
    rotary_scale,
    turned,
    turned_apart,
    turned_pairs,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.settings import GridRotary, Settings, TextRotary
from shardwright.program.layout.tensor_layout import Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Queries and keys turned by their global positions; values pass through. Backward turns back
    and keeps nothing.

    One input: q k v (more extents are not read). Three (latent attention): q; k without positions
    and v; latent and the rotary part of the keys, one for all heads: the last ``rope`` elements of
    a query head are turned, and every key head is joined with the turned part. Otherwise the whole
    head is, or the first share of it that the model's settings say. Patches of an image are turned
    by their rows and columns (`Settings.turns`). Of a text with images a time, a row and a column
    of every token come behind the first input (`grid_positions`).
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        yield from ()
        at = _axes(place, inputs)
        saved = SavedTensors(
            inputs=(
                *(only(values) for values in inputs[: len(inputs) - len(at)]),
                *((at,) if at else ()),
            )
        )
        width = place.operator.reads[0].quantum
        if len(inputs) < 3:
            query, key, *rest = inputs[0]
            return (
                _turned(query, place, width, width, at=at),
                _turned(key, place, width, width, at=at),
                rest[0] if rest else key,
            ), saved
        (query, *_), (plain, value), (_, rope) = inputs
        shared = _turned(rope, place, rope.shape[-1], rope.shape[-1], whole=False)
        key = joined_keys(plain, shared, head=width)
        return (_turned(query, place, width, rope.shape[-1]), key, value), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        query, key, value = (given(g) for g in grads)
        width = place.operator.reads[0].quantum
        if len(saved.inputs) < 3:
            at = _axes(place, saved.inputs)
            back = tuple(
                _turned(part, place, width, width, sign=-1, at=at) for part in (query, key)
            )
            parts = (
                {0: back[0], 1: back[1], 2: value}
                if len(saved.inputs[0]) > 2
                else {0: back[0], 1: back[1] + value}
            )
            return (returned(saved.inputs[0], parts), *(None for _ in at))
        rope = saved.inputs[2][1].shape[-1]
        heads = key.unflatten(-1, (-1, width))
        shared = _turned(heads[..., -rope:].sum(-2), place, rope, rope, sign=-1, whole=False)
        return (
            returned(saved.inputs[0], {0: _turned(query, place, width, rope, sign=-1)}),
            returned(saved.inputs[1], {0: heads[..., :-rope].flatten(-2), 1: value}),
            returned(saved.inputs[2], {1: shared}),
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


def joined_keys(plain: torch.Tensor, turned: torch.Tensor, *, head: int) -> torch.Tensor:
    """Keys of latent attention, `head` elements each: every head's own part and, behind it, the
    turned part that all heads share.
    """
    heads = plain.unflatten(-1, (-1, head - turned.shape[-1]))
    return torch.cat([heads, turned.unsqueeze(-2).expand(*heads.shape[:-1], -1)], dim=-1).flatten(
        -2
    )


@lru_cache(maxsize=4)
def _turns(
    settings: Settings,
    positions: Indices,
    half: int,
    length: int,
    on: torch.device,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions, 1, half) cosines and sines of the angles: those of the last layers, which turn
    alike.
    """
    rates = rotary_rates(settings, half, length=length, on=on)
    at = numbers(positions, like=rates)
    if isinstance(settings.turns, GridRotary) and settings.image is not None:
        at = places(
            at, columns=grid_of(settings.image, patches=length)[1], block=settings.image.block
        )
    return cosines(at, rates, scale=rotary_scale(settings), dtype=dtype)


def _axes(place: OperatorShare, inputs: tuple[Values, ...]) -> Values:
    """The time, row and column of every token; () where tokens have a position alone."""
    return inputs[-1] if isinstance(place.settings.turns, TextRotary) else ()


def _turned(
    x: torch.Tensor,
    place: OperatorShare,
    width: int,
    rope: int,
    *,
    sign: int = 1,
    whole: bool = True,
    at: Values = (),
) -> torch.Tensor:
    """The last `rope` elements of every head of `width`, turned by the tokens' positions (`sign`
    -1: back).

    Of heads that are `whole` their share of the settings. at: see `_axes`.
    """
    settings = place.settings.of_layers(local=place.operator.local)
    half = turned_pairs(settings, rope) if whole and rope == width else rope // 2
    if at:
        rates = rotary_rates(settings, half, length=place.length, on=x.device)
        cos, sin = cosines(at[0], rates, scale=rotary_scale(settings), dtype=x.dtype)
    else:
        cos, sin = _turns(settings, place.positions, half, place.length, x.device, x.dtype)
    if isinstance(settings.turns, GridRotary) and settings.turns.apart:
        return turned_apart(x, cos, sign * sin, width=width, parts=len(settings.turns.axes))
    return turned(x, cos, sign * sin, width=width, start=width - rope)
