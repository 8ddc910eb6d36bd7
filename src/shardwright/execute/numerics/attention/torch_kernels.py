"""PyTorch's fused kernels of attention, each with its own backward,
by what it computes and where.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

import torch
from torch.nn import functional

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, or their gradients: (samples, heads, positions, width)."""
ALIGNED: Final = 8
"""Elements of a head's width that an accelerator's kernels read at once."""
WIDEST: Final = 256
"""Elements of the widest head of the flash kernel."""
ROWS: Final = 32
"""The memory-efficient kernel keeps denominators of so many queries at a time."""


class Kernel(Protocol):
    """softmax(scale Q K^T) V block by block of keys (arXiv 2205.14135); key heads are read by
    equally many query heads in turn.
    """

    def fits(self, parts: Heads) -> bool:
        """Whether it computes tensors of this device, format and width."""

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
        """Gradients of queries, keys and values, from what forward gave."""


class ProcessorFlash:
    """Of processors, in every format."""

    def fits(self, parts: Heads) -> bool:
        """See `Kernel`."""
        return bool(parts[0].device.type == "cpu")

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
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
        """See `Kernel`."""
        found: Heads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            grad, *parts, out, normal, 0.0, causal, scale=scale
        )
        return found


class Flash:
    """FlashAttention-2 of CUDA devices from Ampere on, in 16 bits."""

    def fits(self, parts: Heads) -> bool:
        """See `Kernel`."""
        query, width = parts[0], parts[0].shape[-1]
        return (
            width % ALIGNED == 0
            and width <= WIDEST
            and _halves(query)
            and _generation(query.device) >= 8
        )

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
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
        """See `Kernel`."""
        query, key, _ = parts
        sizes = (query.shape[-2], key.shape[-2])
        # Undefined lengths say that all samples are alike; without dropout nobody looks at the
        # state of a generator.
        found: Heads = torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
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
        return found


class Efficient:
    """The memory-efficient kernel (CUTLASS) of CUDA devices, in float32; key heads are repeated for
    it.
    """

    def fits(self, parts: Heads) -> bool:
        """See `Kernel`."""
        query = parts[0]
        return (
            query.device.type == "cuda"
            and query.dtype is torch.float32
            and query.shape[-1] % ALIGNED == 0
        )

    def forward(
        self, parts: Heads, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernel`."""
        query, key, value = parts
        whole = (query, _repeated(key, query), _repeated(value, query))
        out, normal, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
            *whole, None, True, 0.0, causal, scale=scale
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
        """See `Kernel`."""
        query, key, value = parts
        whole = (query, _repeated(key, query), _repeated(value, query))
        rows = functional.pad(normal, (0, -normal.shape[-1] % ROWS), value=torch.inf)
        dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(
            grad,
            *whole,
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


KERNELS: Final[tuple[Kernel, ...]] = (ProcessorFlash(), Flash(), Efficient())


def kernel_of(parts: Heads) -> Kernel | None:
    """The first that computes them; None = none does."""
    return next((kernel for kernel in KERNELS if kernel.fits(parts)), None)


def _halves(query: torch.Tensor) -> bool:
    return bool(query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16))


@cache
def _generation(device: torch.device) -> int:
    return int(torch.cuda.get_device_capability(device)[0])


@cache
def _no_dropout(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A generator's seed and offset that nobody draws from."""
    return torch.empty(2, dtype=torch.int64, device=device), torch.empty(
        (), dtype=torch.int64, device=device
    )


def _repeated(key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A key head for every query head."""
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def _summed(grad: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Of every key head, the gradients of those that stood for it."""
    return grad if grad.shape[1] == key.shape[1] else grad.unflatten(1, (key.shape[1], -1)).sum(2)
