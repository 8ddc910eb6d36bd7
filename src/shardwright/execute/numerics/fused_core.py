"""softmax(Q K^T) V by one of PyTorch's fused kernels, where one computes what a core asks for."""

from __future__ import annotations

from itertools import pairwise

import torch

from shardwright.execute.numerics.attention_kernels import Heads, Kernel, kernel_of
from shardwright.execute.numerics.groups import members
from shardwright.execute.numerics.keys import own_positions
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, positions, heads x width)."""


def is_fused(place: OperatorShare, parts: Parts) -> bool:
    """A kernel computes this core: of heads as wide as their values, each key head read by equally many query heads in turn, seeing all
    keys or those at and before their own position.

    Left out: sinks, soft caps, biases by distance, windows, images in a text, selected keys, keys of other devices or of other
    positions than the queries of a causal core.
    """
    shape = place.operator.attention
    assert shape is not None
    if any(part.device != parts[0].device or part.dtype != parts[0].dtype or not part.numel() for part in parts):
        return False
    if members(place, "ring") or members(place, "gather") or place.operator.parameters or place.operator.sees_images:
        return False
    if shape.soft_cap or shape.alibi or shape.window or shape.selected or shape.head_dim != shape.value_dim:
        return False
    asked = _grouped(place, shape) and (shape.mask is not Mask.CAUSAL or _in_order(place))
    return asked and kernel_of(_heads(place, parts)) is not None


def _grouped(place: OperatorShare, shape: AttentionShape) -> bool:
    """Local query heads read local key heads in turn, equally many each."""
    (low, high), (first, last) = place.heads, place.kv_heads
    each, rest = divmod(high - low, max(last - first, 1))
    return not rest and all(h * shape.kv_heads // shape.heads - first == (h - low) // each for h in range(low, high))


def _in_order(place: OperatorShare) -> bool:
    """Queries and keys are of the same positions, which rise."""
    return own_positions(place) == place.positions and all(a[1] <= b[0] for a, b in pairwise(place.positions))


def fused(place: OperatorShare, parts: Parts, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, logarithm of the softmax's denominator by sample, query and head), where `is_fused`.

    Args:
        scale: of the products of queries with keys.
    """
    heads = _heads(place, parts)
    out, normal = _kernel(heads).forward(heads, causal=_is_causal(place), scale=scale)
    return _flat(out), normal.transpose(1, 2)


def fused_back(place: OperatorShare, parts: Parts, out: torch.Tensor, normal: torch.Tensor, grad: torch.Tensor, *, scale: float) -> Parts:
    """Gradients of queries, keys and values, from the output and the denominator that forward kept: no forward runs again."""
    heads, made, back = _heads(place, parts), _by_head(place, out), _by_head(place, grad)
    found = _kernel(heads).backward(back, heads, made, normal.transpose(1, 2), causal=_is_causal(place), scale=scale)
    dq, dk, dv = (_flat(one) for one in found)
    return dq, dk, dv


def _kernel(heads: Heads) -> Kernel:
    found = kernel_of(heads)
    assert found is not None, "only where a kernel computes it"
    return found


def _heads(place: OperatorShare, parts: Parts) -> Heads:
    query, key, value = (_by_head(place, part) for part in parts)
    return query, key, value


def _is_causal(place: OperatorShare) -> bool:
    return place.operator.attention is not None and place.operator.attention.mask is Mask.CAUSAL


def _by_head(place: OperatorShare, part: torch.Tensor) -> torch.Tensor:
    assert place.operator.attention is not None
    return part.unflatten(-1, (-1, place.operator.attention.head_dim)).transpose(1, 2)


def _flat(heads: torch.Tensor) -> torch.Tensor:
    return heads.transpose(1, 2).flatten(-2)
