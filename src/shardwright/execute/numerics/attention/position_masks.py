"""Which keys a query sees by their positions alone."""

from __future__ import annotations

import torch

from shardwright.model.ir.operator import AttentionShape, Mask
from shardwright.program.layout.tensor_layout import Indices, Interval


def visible(shape: AttentionShape, distance: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees: (queries, keys), from query minus key positions and the keys'
    positions.
    """
    seen = (
        distance >= 0 if shape.mask is Mask.CAUSAL else torch.ones_like(distance, dtype=torch.bool)
    )
    if not shape.window:
        return seen
    if shape.chunked:
        return seen & ((distance + positions) // shape.window == positions // shape.window)
    return seen & (distance.abs() < shape.window)


def meet(shape: AttentionShape, queries: Indices, keys: Indices, *, images: bool) -> bool:
    """Whether some query may see some key, from their positions on the host; False: `visible` is
    False for all of them.

    Args:
        images: tokens of one image see each other whatever their order, as far as a window lets
            them (`one_image`).
    """
    return any(_meet(shape, asking, asked, images=images) for asking in queries for asked in keys)


def _meet(shape: AttentionShape, queries: Interval, keys: Interval, *, images: bool) -> bool:
    (first, end), (low, high), window = queries, keys, shape.window
    nearest, farthest = first - high + 1, end - 1 - low
    if images:
        return not window or nearest < window
    if shape.mask is Mask.CAUSAL and farthest < 0:
        return False
    if window and shape.chunked:
        return first // window <= (high - 1) // window and low // window <= (end - 1) // window
    return not window or (nearest < window and farthest > -window)
