"""Tensors that wait in host memory between forward and backward: a share of their elements, copied
out and back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from shardwright.lazy_dataclass import dataclass

SHARE = 100
"""Percent that are all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedTensor:
    """A tensor whose first elements lie on the host.

    Args:
        host: those, flat; pinned, where the device is an accelerator.
        rest: the others, flat, on the device.
        shape: of the tensor.
    """

    host: torch.Tensor
    rest: torch.Tensor
    shape: torch.Size


def offload_tensor(tensor: torch.Tensor, *, percent: int) -> OffloadedTensor:
    """Copy so much of a tensor to the host; the caller drops the tensor. On CUDA the copy runs
    beside the kernels that follow.
    """
    flat = tensor.reshape(-1)
    count = flat.numel() * percent // SHARE
    host = host_like(flat[:count])
    _beside(tensor.device, lambda: host.copy_(flat[:count], non_blocking=True), then=False)
    if tensor.is_cuda:
        flat.record_stream(_stream(tensor.device))
    return OffloadedTensor(host=host, rest=flat[count:].clone(), shape=tensor.shape)


def restore_tensor(away: OffloadedTensor) -> torch.Tensor:
    """The tensor, on its device again."""
    count = away.host.numel()
    flat = away.rest.new_empty(count + away.rest.numel())
    _beside(flat.device, lambda: flat[:count].copy_(away.host, non_blocking=True), then=True)
    flat[count:] = away.rest
    return flat.view(away.shape)


def host_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty tensor of the shape, in host memory."""
    return torch.empty(
        tensor.shape, dtype=dtype or tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
    )


def _beside(device: torch.device, copy: Callable[[], object], *, then: bool) -> None:
    """Copy on a stream of its own, after what has been launched; `then`: what is launched later
    waits for it.
    """
    if device.type != "cuda":
        copy()
        return
    here, beside = torch.cuda.current_stream(device), _stream(device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        copy()
    if then:
        here.wait_stream(beside)


@lru_cache(maxsize=64)
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
