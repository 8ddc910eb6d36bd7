"""Attention by one of PyTorch's fused kernels, where one computes the operator."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.fused_kernel_calls import (
    PartialAttention,
    key_block_gradients,
    merge_key_block,
)
from shardwright.execute.numerics.attention.key_exchange import KeyBlock
from shardwright.execute.numerics.attention.mask_rectangles import KernelCall, kernel_calls
from shardwright.execute.numerics.attention.torch_kernels import Heads, Kernel, kernel_of
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask

QueryKeyValue = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, positions, heads x width)."""


def is_fused(place: OperatorShare, parts: QueryKeyValue) -> bool:
    """True if a kernel computes this attention: heads as wide as their values, each key head read
    by equally many query heads in turn, all keys visible or those up to the query's own position.

    Left out: sinks, soft caps, biases by distance, windows, images in a text, selected keys.
    """
    shape = place.operator.attention
    assert shape is not None
    if any(
        part.device != parts[0].device or part.dtype != parts[0].dtype or not part.numel()
        for part in parts
    ):
        return False
    if place.operator.parameters or place.operator.sees_images:
        return False
    if (
        shape.soft_cap
        or shape.alibi
        or shape.window
        or shape.selected
        or shape.head_dim != shape.value_dim
    ):
        return False
    return _grouped(place, shape) and kernel_of(_heads(place, parts)) is not None


def _grouped(place: OperatorShare, shape: AttentionShape) -> bool:
    """True if local query heads read local key heads in turn, equally many each."""
    (low, high), (first_kv, last_kv) = place.heads, place.kv_heads
    each, rest = divmod(high - low, max(last_kv - first_kv, 1))
    return not rest and all(
        h * shape.kv_heads // shape.heads - first_kv == (h - low) // each for h in range(low, high)
    )


def fused_attention(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    earlier: PartialAttention | None,
    *,
    scale: float,
) -> PartialAttention:
    """Attention over all key blocks so far, after one more block, where `is_fused` (see
    `merge_key_block`).

    Args:
        query: (samples, positions, heads x width).
        earlier: attention over the blocks before; None: there are none.
        scale: factor of the products of queries with keys.
    """
    heads = _heads(place, (query, keys.key, keys.value))
    return merge_key_block(_kernel(heads), heads, _calls(place, keys), earlier, scale=scale)


def fused_attention_backward(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    attended: PartialAttention,
    grad: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, KeyBlock]:
    """Gradients of queries and of a block of keys and values, from forward's result over all
    blocks; forward does not run again.

    Args:
        grad: of the output, (samples, heads, positions, width).
    """
    heads = _heads(place, (query, keys.key, keys.value))
    head_grads = key_block_gradients(
        _kernel(heads), heads, _calls(place, keys), attended, grad, scale=scale
    )
    dq, dk, dv = (head_grad.transpose(1, 2).flatten(-2) for head_grad in head_grads)
    return dq, KeyBlock(key=dk.to(query.dtype), value=dv.to(query.dtype), positions=keys.positions)


def _calls(place: OperatorShare, keys: KeyBlock) -> tuple[KernelCall, ...]:
    assert place.operator.attention is not None
    return kernel_calls(
        place.positions, keys.positions, causal=place.operator.attention.mask is Mask.CAUSAL
    )


def _kernel(heads: Heads) -> Kernel:
    kernel = kernel_of(heads)
    assert kernel is not None, "only where a kernel computes it"
    return kernel


def _heads(place: OperatorShare, parts: QueryKeyValue) -> Heads:
    query, key, value = (_by_head(place, part) for part in parts)
    return query, key, value


def _by_head(place: OperatorShare, part: torch.Tensor) -> torch.Tensor:
    assert place.operator.attention is not None
    return part.unflatten(-1, (-1, place.operator.attention.head_dim)).transpose(1, 2)
