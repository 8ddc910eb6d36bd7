"""Small pieces that all operators share: index lists as tensors, stand-ins, gradients of what is
not read.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.program.layout.tensor_layout import Indices


def numbers(indices: Indices, *, like: torch.Tensor) -> torch.Tensor:
    """The indices of the list in order, int64, on the device of `like`."""
    pieces = [torch.arange(low, high, device=like.device) for low, high in indices]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64, device=like.device)


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros of the same shape that takes no memory: says the shape of what backward
    does not read.
    """
    return tensor.new_zeros(()).expand(tensor.shape)


def fine(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the format of statistics: float32 if its own has fewer bits."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def only(values: Values, *kept: int) -> Values:
    """The values with stand-ins for all but the extents `kept`."""
    return tuple(tensor if i in kept else hollow(tensor) for i, tensor in enumerate(values))


def returned(values: Values, grads: dict[int, torch.Tensor]) -> Gradients:
    """A gradient for each of the values: those given, zeros for others, None for integers."""
    zeros = (
        torch.zeros(v.shape, dtype=v.dtype, device=v.device)
        if v.is_floating_point() and i not in grads
        else None
        for i, v in enumerate(values)
    )
    return tuple(grads.get(i, zero) for i, zero in enumerate(zeros))


def given(gradient: torch.Tensor | None) -> torch.Tensor:
    """The gradient of a floating tensor, which is never None."""
    assert gradient is not None
    return gradient


def column(numbers: torch.Tensor) -> torch.Tensor:
    """Ids or labels as (samples, positions, 1), whether they came so or without the last dim."""
    return numbers.unsqueeze(-1) if numbers.dim() == 2 else numbers
