"""Attention to one block of keys at a time, by a fused kernel where one supports it."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.fused_attention import (
    fused_attention,
    fused_attention_backward,
    is_fused,
)
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.attention.merge_fused_attention_calls import PartialAttention
from shardwright.execute.numerics.attention.unfused_attention import (
    ScoreInputs,
    shape_of,
    unfused_attention,
    unfused_attention_backward,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import AttentionShape

NO_SCORE_INPUTS = ScoreInputs()


def score_scale(shape: AttentionShape, settings: Settings) -> float:
    """Factor of attention scores: the settings' factor over sqrt(head width), or alone if plain."""
    return float(
        settings.score_factor
        if settings.plain_scores
        else shape.head_dim**-0.5 * settings.score_factor
    )


def attend_to_keys(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    earlier: PartialAttention | None = None,
    score_inputs: ScoreInputs = NO_SCORE_INPUTS,
) -> PartialAttention:
    """(output, log denominators) of attention after one more block of keys (online softmax).

    Args:
        query: (samples, positions, heads x width), of `place.positions`.
        earlier: attention over the blocks before, which may be overwritten; None: this is the
            first.

    Source: Dao et al. 2022 (arXiv 2205.14135), section 3.1; for keys from other devices Liu et al.
    2023 (arXiv 2310.01889).
    """
    scale = score_scale(shape_of(place), place.settings)
    if is_fused(place, (query, keys.key, keys.value)):
        return fused_attention(place, query, keys, earlier, scale=scale)
    return unfused_attention(place, query, keys, earlier, score_inputs, scale=scale)


def attend_to_keys_backward(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    attended: PartialAttention,
    grad: torch.Tensor,
    score_inputs: ScoreInputs = NO_SCORE_INPUTS,
) -> tuple[torch.Tensor, KeyBlock, *tuple[torch.Tensor, ...]]:
    """Gradients of queries, of one block of keys and values, and of the distance-bias table if any.

    Args:
        attended: attention over all blocks, with the output in the format of the queries.
        grad: gradient of that output, by head.
    """
    scale = score_scale(shape_of(place), place.settings)
    if is_fused(place, (query, keys.key, keys.value)):
        return fused_attention_backward(place, query, keys, attended, grad, scale=scale)
    return unfused_attention_backward(place, query, keys, attended, grad, score_inputs, scale=scale)


def split_heads(place: OperatorShare, values: torch.Tensor) -> torch.Tensor:
    """Reshape an output or its gradient to (samples, heads, positions, width of values)."""
    return values.unflatten(-1, (-1, shape_of(place).value_dim)).transpose(1, 2)


def merge_heads(heads: torch.Tensor) -> torch.Tensor:
    """Reshape (samples, heads, positions, width) to (samples, positions, heads x width)."""
    return heads.transpose(1, 2).flatten(-2)
