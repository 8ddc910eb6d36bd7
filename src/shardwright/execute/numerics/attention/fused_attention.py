"""Attention by one of PyTorch's fused kernels, where one supports the operator."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.fused_calls_covering_causal_mask import (
    KernelCall,
    kernel_calls,
)
from shardwright.execute.numerics.attention.fused_torch_kernels import (
    FusedAttentionKernel,
    Heads,
    kernel_of,
)
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.attention.merge_fused_attention_calls import (
    PartialAttention,
    key_block_gradients,
    merge_key_block,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask

QueryKeyValue = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, positions, heads x width)."""


def is_fused(place: OperatorShare, parts: QueryKeyValue) -> bool:
    """True if a fused kernel can run: full or causal mask, equal head widths, no bias, cap, window.

    Each key head must be read by equally many query heads in turn.

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
    return _are_heads_grouped(place, shape) and kernel_of(_heads(place, parts)) is not None


def _are_heads_grouped(place: OperatorShare, shape: AttentionShape) -> bool:
    """True if equally many consecutive query heads read each local key head, in order (GQA)."""
    (low, high), (first_kv, last_kv) = place.heads, place.kv_heads
    group_size, rest = divmod(high - low, max(last_kv - first_kv, 1))
    return not rest and all(
        h * shape.kv_heads // shape.heads - first_kv == (h - low) // group_size
        for h in range(low, high)
    )


def fused_attention(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    earlier: PartialAttention | None,
    *,
    scale: float,
) -> PartialAttention:
    """(output, log denominators) of attention after one more block of keys, by a fused kernel.

    See `merge_key_block`.

    Args:
        query: (samples, positions, heads x width).
        earlier: attention over the blocks before; None: this is the first block.
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
    """Gradients of queries and of one block of keys and values, by a fused kernel.

    They follow from forward's result over all blocks; forward does not run again.

    Args:
        grad: gradient of the output, (samples, heads, positions, width).
    """
    heads = _heads(place, (query, keys.key, keys.value))
    head_grads = key_block_gradients(
        _kernel(heads), heads, _calls(place, keys), attended, grad, scale=scale
    )
    dq, dk, dv = (head_grad.transpose(1, 2).flatten(-2) for head_grad in head_grads)
    return dq, KeyBlock(key=dk.to(query.dtype), value=dv.to(query.dtype), positions=keys.positions)


def _calls(place: OperatorShare, keys: KeyBlock) -> tuple[KernelCall, ...]:
    """Fused-kernel calls (row ranges, causal or full) that cover the queries' mask on `keys`."""
    assert place.operator.attention is not None
    return kernel_calls(
        place.positions, keys.positions, causal=place.operator.attention.mask is Mask.CAUSAL
    )


def _kernel(heads: Heads) -> FusedAttentionKernel:
    """First fused kernel that supports the tensors' device, format and width; there must be one."""
    kernel = kernel_of(heads)
    assert kernel is not None, "a kernel supports fused attention"
    return kernel


def _heads(place: OperatorShare, parts: QueryKeyValue) -> Heads:
    """Queries, keys and values, each reshaped to (samples, heads, positions, head width)."""
    query, key, value = (_by_head(place, part) for part in parts)
    return query, key, value


def _by_head(place: OperatorShare, part: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor to (samples, heads, positions, head width)."""
    assert place.operator.attention is not None
    return part.unflatten(-1, (-1, place.operator.attention.head_dim)).transpose(1, 2)
