"""PyTorch's fused attention kernels with their backward passes, and the choice among them."""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

import torch
from torch.nn import functional

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, heads, positions, width)."""
ALIGNED: Final = 8
"""An accelerator's kernels read heads whose width is a multiple of this number of elements."""
WIDEST: Final = 256
"""Elements of the widest head of the flash kernel."""
ROWS: Final = 32
"""The memory-efficient kernel stores denominators in multiples of this number of queries."""


class FusedAttentionKernel(Protocol):
    """Fused kernel of softmax(scale Q K^T) V (arXiv 2205.14135).

    Key heads are read by equally many query heads in turn.
    """

    def fits(self, parts: Heads) -> bool:
        """True if the kernel supports the tensors' device, format and width."""

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(output, logarithm of the softmax's denominator by sample, head and query)."""

    def backward(
        self,
        grad: torch.Tensor,
        parts: Heads,
        out: torch.Tensor,
        normal: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Heads:
        """Gradients of queries, keys and values, from the results of forward."""


class CpuFlash:
    """The flash attention kernel of CPUs, in every format."""

    def fits(self, parts: Heads) -> bool:
        """True for tensors on a CPU."""
        return bool(parts[0].device.type == "cpu")

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the CPU flash kernel forward: (output, log denominators)."""
        out, normal = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            *parts, 0.0, causal, scale=scale
        )
        return out, normal

    def backward(
        self,
        grad: torch.Tensor,
        parts: Heads,
        out: torch.Tensor,
        normal: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Heads:
        """Gradients of queries, keys and values by the CPU flash kernel."""
        gradients: Heads = (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                grad, *parts, out, normal, 0.0, causal, scale=scale
            )
        )
        return gradients


class CudaFlash:
    """FlashAttention-2 of CUDA devices from Ampere on, in 16 bits."""

    def fits(self, parts: Heads) -> bool:
        """True for 16-bit tensors on Ampere or later, head width a multiple of 8, at most 256."""
        query, width = parts[0], parts[0].shape[-1]
        return (
            width % ALIGNED == 0
            and width <= WIDEST
            and _is_16_bit_cuda(query)
            and _compute_capability(query.device) >= 8
        )

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run FlashAttention-2 forward: (output, log denominators)."""
        out, normal, *_ = torch.ops.aten._scaled_dot_product_flash_attention.default(
            *parts, 0.0, causal, False, scale=scale
        )
        return out, normal

    def backward(
        self,
        grad: torch.Tensor,
        parts: Heads,
        out: torch.Tensor,
        normal: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Heads:
        """Gradients of queries, keys and values by FlashAttention-2."""
        query, key, _ = parts
        sizes = (query.shape[-2], key.shape[-2])
        # Undefined lengths mean that all samples have one length. Without dropout the generator's
        # state is not read.
        gradients: Heads = torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
            grad,
            *parts,
            out,
            normal,
            None,
            None,
            *sizes,
            0.0,
            causal,
            *_no_dropout(query.device),
            scale=scale,
        )
        return gradients


class CudaEfficient:
    """The memory-efficient kernel (CUTLASS) of CUDA devices, in float32.

    Key heads are repeated to match the query heads.
    """

    def fits(self, parts: Heads) -> bool:
        """True for float32 tensors on a CUDA device whose head width is a multiple of 8."""
        query = parts[0]
        return (
            query.device.type == "cuda"
            and query.dtype is torch.float32
            and query.shape[-1] % ALIGNED == 0
        )

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the memory-efficient kernel forward: (output, log denominators)."""
        query, key, value = parts
        repeated = (query, _repeated(key, query), _repeated(value, query))
        out, normal, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
            *repeated, None, True, 0.0, causal, scale=scale
        )
        return out, normal[..., : query.shape[-2]]

    def backward(
        self,
        grad: torch.Tensor,
        parts: Heads,
        out: torch.Tensor,
        normal: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Heads:
        """Gradients of queries, keys and values by the memory-efficient kernel."""
        query, key, value = parts
        repeated = (query, _repeated(key, query), _repeated(value, query))
        rows = functional.pad(normal, (0, -normal.shape[-1] % ROWS), value=torch.inf)
        dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(
            grad,
            *repeated,
            None,
            out,
            rows,
            *_no_dropout(query.device),
            0.0,
            [True, True, True, False],
            causal,
            scale=scale,
        )
        return dq, _summed(dk, key), _summed(dv, value)


KERNELS: Final[tuple[FusedAttentionKernel, ...]] = (CpuFlash(), CudaFlash(), CudaEfficient())


def kernel_of(parts: Heads) -> FusedAttentionKernel | None:
    """The first fused kernel that supports the tensors; None if none does."""
    return next((kernel for kernel in KERNELS if kernel.fits(parts)), None)


def _is_16_bit_cuda(query: torch.Tensor) -> bool:
    """True for CUDA tensors in bfloat16 or float16."""
    return bool(query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16))


@cache
def _compute_capability(device: torch.device) -> int:
    """Major compute capability of a CUDA device."""
    return int(torch.cuda.get_device_capability(device)[0])


@cache
def _no_dropout(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised (seed, offset) tensors, which kernels do not read without dropout."""
    return torch.empty(2, dtype=torch.int64, device=device), torch.empty(
        (), dtype=torch.int64, device=device
    )


def _repeated(key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Key or value heads, repeated so that each query head has its own."""
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def _summed(grad: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The gradient of every key head, summed over its repetitions."""
    return grad if grad.shape[1] == key.shape[1] else grad.unflatten(1, (key.shape[1], -1)).sum(2)
