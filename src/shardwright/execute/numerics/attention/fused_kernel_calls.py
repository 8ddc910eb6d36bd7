"""softmax(scale Q K^T) V of a block of keys by calls of a fused kernel, joined with the blocks
before by logarithms of denominators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardwright.execute.numerics.attention.mask_rectangles import Call
from shardwright.execute.numerics.attention.torch_kernels import Heads, Kernel
from shardwright.execute.numerics.base.local_tensors import fine

Made = tuple[torch.Tensor, torch.Tensor]
"""The output over the keys that were met, (samples, heads, queries, width), and the logarithms of
its denominators, (samples, heads, queries): -inf of a query that has met none, whose output is
zero."""


def joined(
    kernel: Kernel, heads: Heads, calls: Sequence[Call], before: Made | None, *, scale: float
) -> Made:
    """What is made once the keys have joined. With outputs o of denominators e^l of two sets of
    keys, that of both has

        l = ln(e^l1 + e^l2), o = o1 e^(l1 - l) + o2 e^(l2 - l).

    Args:
        calls: which of the keys each query sees (`runs.calls`).
        before: of other keys, which is overwritten where it is as fine as what is made; None:
            nothing was met. It is fine then (`boxes.fine`), but for one call of all rows, which is
            the kernel's own.

    Source: Dao et al. 2022 (arXiv 2205.14135), section 3.1.
    """
    query = heads[0]
    if before is None and _whole(heads, calls):
        return kernel.forward(heads, causal=calls[0].causal, scale=scale)
    if before is None:
        out = fine(query.new_zeros(query.transpose(1, 2).shape).transpose(1, 2))
        before = out, out.new_full(query.shape[:-1], -torch.inf)
    out, normal = map(fine, before)
    for call in calls:
        some, log = kernel.forward(_rows(heads, call), causal=call.causal, scale=scale)
        own, known = (one[:, :, slice(*call.queries)] for one in (out, normal))
        total = torch.logaddexp(known, log)
        own.mul_((known - total).exp_().unsqueeze(-1)).addcmul_(
            fine(some), (log - total).exp_().unsqueeze(-1)
        )
        known.copy_(total)
    return out, normal


def joined_back(
    kernel: Kernel,
    heads: Heads,
    calls: Sequence[Call],
    made: Made,
    grad: torch.Tensor,
    *,
    scale: float,
) -> Heads:
    """Gradients of queries, and of a block's keys and values, through these calls.

    A kernel's backward builds its weights anew from the denominators that it is given, p = e^(scale
    q k - l), and takes <output, gradient> off: with those of all keys it finds a block's share of
    the whole softmax's gradient.

    Args:
        made: of all keys, in the format of the queries.
        grad: of that output.
    """
    if _whole(heads, calls):
        return kernel.backward(grad, heads, *made, causal=calls[0].causal, scale=scale)
    dq, dk, dv = (fine(one.new_zeros(one.transpose(1, 2).shape).transpose(1, 2)) for one in heads)
    for call in calls:
        rows, columns = slice(*call.queries), slice(*call.keys)
        back, out, normal = (one[:, :, rows] for one in (grad, *made))
        found = kernel.backward(
            back, _rows(heads, call), out, normal.contiguous(), causal=call.causal, scale=scale
        )
        for whole, taken, part in zip((dq, dk, dv), (rows, columns, columns), found, strict=True):
            whole[:, :, taken] += part
    return dq, dk, dv


def _whole(heads: Heads, calls: Sequence[Call]) -> bool:
    """One call has all rows."""
    sizes = heads[0].shape[-2], heads[1].shape[-2]
    return (
        len(calls) == 1
        and (calls[0].queries[1] - calls[0].queries[0], calls[0].keys[1] - calls[0].keys[0])
        == sizes
    )


def _rows(heads: Heads, call: Call) -> Heads:
    rows, columns = slice(*call.queries), slice(*call.keys)
    return heads[0][:, :, rows], heads[1][:, :, columns], heads[2][:, :, columns]
