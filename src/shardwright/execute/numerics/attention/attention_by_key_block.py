"""Attention of a device's queries to one block of keys after another, by a fused kernel where one
computes it.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.fused_attention import fused, fused_back, is_fused
from shardwright.execute.numerics.attention.fused_kernel_calls import Made
from shardwright.execute.numerics.attention.key_exchange import Keys
from shardwright.execute.numerics.attention.unfused_attention import (
    ScoreInputs,
    built,
    built_back,
    shape_of,
)
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape
from shardwright.model.ir.settings import Settings

ALONE = ScoreInputs()


def score_scale(shape: AttentionShape, settings: Settings) -> float:
    """The settings' factor over the root of a key head's width; the factor alone where scores are
    plain.
    """
    return float(
        settings.score_factor
        if settings.plain_scores
        else shape.head_dim**-0.5 * settings.score_factor
    )


def met(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    before: Made | None = None,
    beside: ScoreInputs = ALONE,
) -> Made:
    """What is made of all keys that queries have met, once a block of keys has joined.

    Args:
        query: (samples, positions, heads x width), of `place.positions`.
        before: of the blocks before, which may be overwritten; None: this is the first.

    Source: Dao et al. 2022 (arXiv 2205.14135), section 3.1; of keys that come from other devices
    Liu et al. 2023 (arXiv 2310.01889).
    """
    scale = score_scale(shape_of(place), place.settings)
    if is_fused(place, (query, keys.key, keys.value)):
        return fused(place, query, keys, before, scale=scale)
    return built(place, query, keys, before, beside, scale=scale)


def met_back(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    made: Made,
    grad: torch.Tensor,
    beside: ScoreInputs = ALONE,
) -> tuple[torch.Tensor, Keys, *tuple[torch.Tensor, ...]]:
    """Gradients of queries, of a block of keys and values, and of what `beside` has of a table.

    Args:
        made: of all blocks, the output in the format of the queries.
        grad: of that output, by head as it is.
    """
    scale = score_scale(shape_of(place), place.settings)
    if is_fused(place, (query, keys.key, keys.value)):
        return fused_back(place, query, keys, made, grad, scale=scale)
    return built_back(place, query, keys, made, grad, beside, scale=scale)


def by_head(place: OperatorShare, values: torch.Tensor) -> torch.Tensor:
    """(samples, heads, positions, width of values) of an output or its gradient."""
    return values.unflatten(-1, (-1, shape_of(place).value_dim)).transpose(1, 2)


def side_by_side(heads: torch.Tensor) -> torch.Tensor:
    """(samples, positions, heads x width) of (samples, heads, positions, width)."""
    return heads.transpose(1, 2).flatten(-2)
