"""softmax(Q K^T) V by one of PyTorch's fused kernels, where one computes what a core asks for."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.attention.fused_kernel_calls import Made, joined, joined_back
from shardwright.execute.numerics.attention.key_exchange import Keys
from shardwright.execute.numerics.attention.mask_rectangles import Call, calls
from shardwright.execute.numerics.attention.torch_kernels import Heads, Kernel, kernel_of
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, positions, heads x width)."""


def is_fused(place: OperatorShare, parts: Parts) -> bool:
    """A kernel computes this core: of heads as wide as their values, each key head read by equally
    many query heads in turn, seeing all keys or those at and before their own position.

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
    """Local query heads read local key heads in turn, equally many each."""
    (low, high), (first, last) = place.heads, place.kv_heads
    each, rest = divmod(high - low, max(last - first, 1))
    return not rest and all(
        h * shape.kv_heads // shape.heads - first == (h - low) // each for h in range(low, high)
    )


def fused(
    place: OperatorShare, query: torch.Tensor, keys: Keys, before: Made | None, *, scale: float
) -> Made:
    """What is made once a block of keys has joined, where `is_fused` (see `kernel_calls.joined`).

    Args:
        query: (samples, positions, heads x width).
        before: None: no block has.
        scale: of the products of queries with keys.
    """
    heads = _heads(place, (query, keys.key, keys.value))
    return joined(_kernel(heads), heads, _calls(place, keys), before, scale=scale)


def fused_back(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    made: Made,
    grad: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, Keys]:
    """Gradients of queries and of a block of keys and values, from what forward made of all blocks:
    no forward runs again.

    Args:
        grad: of the output, (samples, heads, positions, width).
    """
    heads = _heads(place, (query, keys.key, keys.value))
    found = joined_back(_kernel(heads), heads, _calls(place, keys), made, grad, scale=scale)
    dq, dk, dv = (one.transpose(1, 2).flatten(-2) for one in found)
    return dq, Keys(key=dk.to(query.dtype), value=dv.to(query.dtype), positions=keys.positions)


def _calls(place: OperatorShare, keys: Keys) -> tuple[Call, ...]:
    assert place.operator.attention is not None
    return calls(
        place.positions, keys.positions, causal=place.operator.attention.mask is Mask.CAUSAL
    )


def _kernel(heads: Heads) -> Kernel:
    found = kernel_of(heads)
    assert found is not None, "only where a kernel computes it"
    return found


def _heads(place: OperatorShare, parts: Parts) -> Heads:
    query, key, value = (_by_head(place, part) for part in parts)
    return query, key, value


def _by_head(place: OperatorShare, part: torch.Tensor) -> torch.Tensor:
    assert place.operator.attention is not None
    return part.unflatten(-1, (-1, place.operator.attention.head_dim)).transpose(1, 2)
