"""Attention masks from positions alone: causal, sliding windows and chunks."""

from __future__ import annotations

import torch

from shardwright.model.ir.operator import AttentionShape, Mask
from shardwright.program.layout.tensor_layout import Indices, Interval


def visibility_mask(
    shape: AttentionShape, distance: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """(queries, keys): True if mask, window and chunk let query see key; distance: query - key.

    `distance`: query minus key positions; `positions`: those of the keys.
    """
    mask = (
        distance >= 0 if shape.mask is Mask.CAUSAL else torch.ones_like(distance, dtype=torch.bool)
    )
    if not shape.window:
        return mask
    if shape.chunked:
        return mask & ((distance + positions) // shape.window == positions // shape.window)
    return mask & (distance.abs() < shape.window)


def may_see(shape: AttentionShape, queries: Indices, keys: Indices, *, images: bool) -> bool:
    """True if any query may see any key; with `images` only a window, not the mask, hides keys.

    If False, `visibility_mask` is False for all pairs.

    Args:
        images: tokens of one image see each other in both directions, up to the window
            (`same_image_mask`).
    """
    return any(
        _interval_may_see(shape, query_interval, key_interval, images=images)
        for query_interval in queries
        for key_interval in keys
    )


def _interval_may_see(
    shape: AttentionShape, queries: Interval, keys: Interval, *, images: bool
) -> bool:
    """True if a query in [first, end) may see a key in [low, high); `images` as in `may_see`."""
    (first_query, end), (low, high), window = queries, keys, shape.window
    nearest, farthest = first_query - high + 1, end - 1 - low
    if images:
        return not window or nearest < window
    if shape.mask is Mask.CAUSAL and farthest < 0:
        return False
    if window and shape.chunked:
        return (
            first_query // window <= (high - 1) // window and low // window <= (end - 1) // window
        )
    return not window or (nearest < window and farthest > -window)
