"""Offload of activations to host memory between forward and backward, in part or whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from shardwright.lazily_compiled_dataclass import dataclass

WHOLE_PERCENT = 100
"""Percent of the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedTensor:
    """A tensor whose first elements lie in host memory and the rest on the device.

    Args:
        host: the first elements, flat; pinned if the device is an accelerator.
        rest: the other elements, flat, on the device.
        shape: shape of the tensor.
    """

    host: torch.Tensor
    rest: torch.Tensor
    shape: torch.Size


def offload_tensor(tensor: torch.Tensor, *, percent: int) -> OffloadedTensor:
    """Copy the first `percent` of a tensor's flat elements to the host, and clone the rest.

    On CUDA, the copy overlaps with the kernels that follow.
    """
    flat = tensor.reshape(-1)
    count = flat.numel() * percent // WHOLE_PERCENT
    host = host_like(flat[:count])
    _copy_on_stream(
        tensor.device, lambda: host.copy_(flat[:count], non_blocking=True), later_work_waits=False
    )
    if tensor.is_cuda:
        flat.record_stream(_stream(tensor.device))
    return OffloadedTensor(host=host, rest=flat[count:].clone(), shape=tensor.shape)


def restore_tensor(offloaded: OffloadedTensor) -> torch.Tensor:
    """Join an offloaded tensor's host and device elements again, on its device, in its shape."""
    count = offloaded.host.numel()
    flat = offloaded.rest.new_empty(count + offloaded.rest.numel())
    _copy_on_stream(
        flat.device,
        lambda: flat[:count].copy_(offloaded.host, non_blocking=True),
        later_work_waits=True,
    )
    flat[count:] = offloaded.rest
    return flat.view(offloaded.shape)


def host_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Uninitialised host tensor of the shape of `tensor`, and its type if `dtype` is None."""
    return torch.empty(
        tensor.shape, dtype=dtype or tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
    )


def _copy_on_stream(
    device: torch.device, copy: Callable[[], object], *, later_work_waits: bool
) -> None:
    """Run `copy` on a side CUDA stream after all launched work; on a CPU, run it at once.

    `later_work_waits`: work launched later waits for the copy. Without CUDA, the copy runs at once.
    """
    if device.type != "cuda":
        copy()
        return
    current_stream, copy_stream = torch.cuda.current_stream(device), _stream(device)
    copy_stream.wait_stream(current_stream)
    with torch.cuda.stream(copy_stream):
        copy()
    if later_work_waits:
        current_stream.wait_stream(copy_stream)


@lru_cache(maxsize=64)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The side stream on which a CUDA device copies to and from the host, created once."""
    return torch.cuda.Stream(device)
