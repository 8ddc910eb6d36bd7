"""Which keys a query sees by their positions alone."""

from __future__ import annotations

import torch

from shardwright.model.ir.operator import AttentionShape, Mask


def visible(shape: AttentionShape, distance: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees: (queries, keys), from query minus key positions and the keys' positions."""
    seen = distance >= 0 if shape.mask is Mask.CAUSAL else torch.ones_like(distance, dtype=torch.bool)
    if not shape.window:
        return seen
    if shape.chunked:
        return seen & ((distance + positions) // shape.window == positions // shape.window)
    return seen & (distance.abs() < shape.window)
