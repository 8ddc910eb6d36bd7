"""Pieces of reference blocks in plain PyTorch: norms, activations, attention cores, rotary
positions.

A module's name in a block is the operator's name in our graph, so counts can be set side by side.
Where a GPU's fused kernel keeps other tensors than the CPU's, the module says which it stands for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class FusedRms(torch.autograd.Function):
    """RMSNorm as CUDA's one-kernel operator does it: backward needs the input, the gain and 1 / rms
    in fp32 (a number a token)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        inverse = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, gain, inverse)
        return (x * inverse).to(x.dtype) * gain

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, gain, inverse = ctx.saved_tensors
        normed = x * inverse
        scaled = grads[0] * gain
        inner = (scaled * normed).mean(-1, keepdim=True)
        dims = tuple(range(x.dim() - 1))
        return (inverse * (scaled - normed * inner)).to(x.dtype), (grads[0] * normed).sum(dims).to(
            gain.dtype
        )


class Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = FusedRms.apply(x, self.weight)
        return result


class FusedSwiGlu(torch.autograd.Function):
    """silu(gate) x up as one kernel: backward needs the two halves only."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        return grads[0] * up * sigmoid * (1 + gate * (1 - sigmoid)), grads[0] * gate * sigmoid


class SwiGlu(nn.Module):
    """`fused`: one kernel; else two operators of PyTorch, which keep silu(gate) as well."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.fused:
            result: Tensor = FusedSwiGlu.apply(gate, up)
            return result
        return functional.silu(gate) * up


class Parts(nn.Module):
    """Several projections of one input (q, k, v; gate and up), each a GEMM of its own."""

    def __init__(self, reads: int, *writes: int, bias: bool = False) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(reads, n, bias=bias) for n in writes)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part(x) for part in self.each)


def turned(x: Tensor, sign: int) -> Tensor:
    """Pairs of (batch, positions, heads, width) turned by angles that grow with the position."""
    positions, half = x.shape[1], x.shape[-1] // 2
    angle = torch.outer(
        torch.arange(positions).float(), 10000.0 ** (-torch.arange(half).float() / half)
    )
    turn = torch.polar(torch.ones_like(angle), sign * angle)[None, :, None, :]
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], half, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


class Turn(torch.autograd.Function):
    """Rotary positions: backward turns the other way round and needs the angles only, which all
    layers share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return turned(x, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return turned(grads[0], -1)


class Rotary(nn.Module):
    """Rotary positions of queries and keys; values pass."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return Turn.apply(q), Turn.apply(k), v


def repeated(x: Tensor, times: int) -> Tensor:
    """Each key head `times` times over, as a copy (batch, positions, heads, width)."""
    return x if times == 1 else x.repeat_interleave(times, dim=2)


class Matmuls(nn.Module):
    """softmax(Q K^T) V by explicit products over whole score matrices; every query meets every key,
    masked or not."""

    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        times = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, repeated(k, times), repeated(v, times)))
        # A scaled query is a copy; the scale belongs to the scores, where it keeps nothing.
        scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        if self.causal:
            hidden = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype).triu(1)
            scores = scores + hidden
        return (torch.softmax(scores, -1) @ v).transpose(1, 2)


class Flash(nn.Module):
    """The CUDA flash attention operator (its shapes: the kernel itself needs a GPU).

    `expanded`: keys and values are repeated to the query heads before the kernel, which a kernel
    that knows groups does without.
    """

    def __init__(self, *, expanded: bool = False) -> None:
        super().__init__()
        self.expanded = expanded

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        times = q.shape[2] // k.shape[2] if self.expanded else 1
        q, k, v = (x.transpose(1, 2) for x in (q, repeated(k, times), repeated(v, times)))
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)[
            0
        ]
        return out.transpose(1, 2)
