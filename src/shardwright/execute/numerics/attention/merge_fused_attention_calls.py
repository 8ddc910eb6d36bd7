"""Attention to a key block by fused kernel calls, merged with earlier blocks by denominators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardwright.execute.numerics.attention.fused_calls_covering_causal_mask import KernelCall
from shardwright.execute.numerics.attention.fused_torch_kernels import FusedAttentionKernel, Heads
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
)

PartialAttention = tuple[torch.Tensor, torch.Tensor]
"""The output over the keys so far, (samples, heads, queries, width), and the logarithms of its
softmax denominators, (samples, heads, queries). A query that has seen no key has -inf and an output
of zero.
"""


def merge_key_block(
    kernel: FusedAttentionKernel,
    heads: Heads,
    calls: Sequence[KernelCall],
    earlier: PartialAttention | None,
    *,
    scale: float,
) -> PartialAttention:
    """(output, log denominators) after one more key block; may overwrite `earlier`, None at first.

    With outputs o of denominators e^l of two sets of keys, the output over both has

        l = ln(e^l1 + e^l2), o = o1 e^(l1 - l) + o2 e^(l2 - l).

    Args:
        calls: the keys that each query sees (`fused_calls_covering_causal_mask.kernel_calls`).
        earlier: attention over other keys, which is overwritten if it is float32 or wider; None:
            there are none. The result is float32 or wider, except after a single call of all rows,
            where it has the kernel's format.

    Source: Dao et al. 2022 (arXiv 2205.14135), section 3.1.
    """
    query = heads[0]
    if earlier is None and _is_one_call(heads, calls):
        return kernel.forward(heads, causal=calls[0].causal, scale=scale)
    if earlier is None:
        out = at_least_float32(query.new_zeros(query.transpose(1, 2).shape).transpose(1, 2))
        earlier = out, out.new_full(query.shape[:-1], -torch.inf)
    out, normal = map(at_least_float32, earlier)
    for call in calls:
        block_out, block_normal = kernel.forward(
            _rows(heads, call), causal=call.causal, scale=scale
        )
        out_rows, normal_rows = (tensor[:, :, slice(*call.queries)] for tensor in (out, normal))
        total = torch.logaddexp(normal_rows, block_normal)
        out_rows.mul_((normal_rows - total).exp_().unsqueeze(-1)).addcmul_(
            at_least_float32(block_out), (block_normal - total).exp_().unsqueeze(-1)
        )
        normal_rows.copy_(total)
    return out, normal


def key_block_gradients(
    kernel: FusedAttentionKernel,
    heads: Heads,
    calls: Sequence[KernelCall],
    attended: PartialAttention,
    grad: torch.Tensor,
    *,
    scale: float,
) -> Heads:
    """Gradients of queries and of one block's keys and values through fused kernel calls.

    A kernel's backward computes its weights again from the given denominators, p =
    e^(scale q k - l), and subtracts <output, gradient>. With the denominators of all keys it gives
    a block's share of the whole softmax's gradient.

    Args:
        attended: attention over all keys, in the format of the queries.
        grad: gradient of that output.
    """
    if _is_one_call(heads, calls):
        return kernel.backward(grad, heads, *attended, causal=calls[0].causal, scale=scale)
    dq, dk, dv = (
        at_least_float32(tensor.new_zeros(tensor.transpose(1, 2).shape).transpose(1, 2))
        for tensor in heads
    )
    for call in calls:
        rows, columns = slice(*call.queries), slice(*call.keys)
        grad_rows, out, normal = (tensor[:, :, rows] for tensor in (grad, *attended))
        call_grads = kernel.backward(
            grad_rows, _rows(heads, call), out, normal.contiguous(), causal=call.causal, scale=scale
        )
        for total, rows_taken, call_grad in zip(
            (dq, dk, dv), (rows, columns, columns), call_grads, strict=True
        ):
            total[:, :, rows_taken] += call_grad
    return dq, dk, dv


def _is_one_call(heads: Heads, calls: Sequence[KernelCall]) -> bool:
    """True if one kernel call covers every query and key."""
    sizes = heads[0].shape[-2], heads[1].shape[-2]
    return (
        len(calls) == 1
        and (calls[0].queries[1] - calls[0].queries[0], calls[0].keys[1] - calls[0].keys[0])
        == sizes
    )


def _rows(heads: Heads, call: KernelCall) -> Heads:
    """Queries, keys and values of the row ranges that a kernel call covers."""
    rows, columns = slice(*call.queries), slice(*call.keys)
    return heads[0][:, :, rows], heads[1][:, :, columns], heads[2][:, :, columns]
