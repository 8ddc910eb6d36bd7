"""softmax(Q K^T) V by PyTorch's fused kernel, where that computes what a core asks for, with the kernel of its backward."""

from __future__ import annotations

from itertools import pairwise

import torch

from shardwright.execute.numerics.groups import members
from shardwright.execute.numerics.keys import own_positions
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, positions, heads x width)."""


def is_fused(place: OperatorShare, parts: Parts) -> bool:
    """The kernel computes this core: of heads as wide as their values, each key head read by equally many query heads in turn, seeing all
    keys or those at and before their own position.

    Left out: sinks, soft caps, biases by distance, windows, keys of other devices or of other positions than the queries of a causal core;
    accelerators.
    """
    shape = place.operator.attention
    assert shape is not None
    if any(part.device.type != "cpu" or part.dtype != parts[0].dtype or not part.numel() for part in parts):
        return False
    if members(place, "ring") or members(place, "gather") or place.operator.parameters:
        return False
    if shape.soft_cap or shape.alibi or shape.window or shape.head_dim != shape.value_dim:
        return False
    return _grouped(place, shape) and (shape.mask is not Mask.CAUSAL or _in_order(place))


def _grouped(place: OperatorShare, shape: AttentionShape) -> bool:
    """Local query heads read local key heads in turn, equally many each."""
    (low, high), (first, last) = place.heads, place.kv_heads
    each, rest = divmod(high - low, max(last - first, 1))
    return not rest and all(h * shape.kv_heads // shape.heads - first == (h - low) // each for h in range(low, high))


def _in_order(place: OperatorShare) -> bool:
    """Queries and keys are of the same positions, which rise."""
    return own_positions(place) == place.positions and all(a[1] <= b[0] for a, b in pairwise(place.positions))


def fused(place: OperatorShare, parts: Parts, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, logarithm of the softmax's denominator by sample, query and head), block by block of keys (arXiv 2205.14135).

    Args:
        scale: of the products of queries with keys.
    """
    query, key, value = (_by_head(place, part) for part in parts)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, normal = forward(query, key, value, 0.0, _is_causal(place), scale=scale)
    return _flat(out), normal.transpose(1, 2)


def fused_back(place: OperatorShare, parts: Parts, out: torch.Tensor, normal: torch.Tensor, grad: torch.Tensor, *, scale: float) -> Parts:
    """Gradients of queries, keys and values, from the output and the denominator that forward kept: no forward runs again."""
    query, key, value, made, back = (_by_head(place, part) for part in (*parts, out, grad))
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    dq, dk, dv = backward(back, query, key, value, made, normal.transpose(1, 2), 0.0, _is_causal(place), scale=scale)
    return _flat(dq), _flat(dk), _flat(dv)


def _is_causal(place: OperatorShare) -> bool:
    return place.operator.attention is not None and place.operator.attention.mask is Mask.CAUSAL


def _by_head(place: OperatorShare, part: torch.Tensor) -> torch.Tensor:
    assert place.operator.attention is not None
    return part.unflatten(-1, (-1, place.operator.attention.head_dim)).transpose(1, 2)


def _flat(heads: torch.Tensor) -> torch.Tensor:
    return heads.transpose(1, 2).flatten(-2)
