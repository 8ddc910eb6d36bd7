"""Tensor helpers that all operators share: indices, placeholders and zero gradients."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_protocol import Gradients, Values, Weights
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.tensor_layout import Indices


def index_tensor(indices: Indices, *, like: torch.Tensor) -> torch.Tensor:
    """Int64 tensor of the positions in an index list, in order, on the device of `like`."""
    ranges = [torch.arange(low, high, device=like.device) for low, high in indices]
    return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64, device=like.device)


def shape_placeholder(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the tensor's shape that take no memory.

    They keep the shape of a tensor whose values backward does not read.
    """
    return tensor.new_zeros(()).expand(tensor.shape)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the format of statistics: float32 if its own format has fewer bits."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def parameters_by_role(operator: Operator, weights: Weights) -> dict[str, torch.Tensor]:
    """Parameters of an operator, at least float32, by the last part of their names (``scale``)."""
    return {
        p.name.rpartition(".")[2]: at_least_float32(weights[p.name]) for p in operator.parameters
    }


def keep_extents(values: Values, *extents: int) -> Values:
    """The values, with memoryless placeholders for all extents not numbered in `extents`."""
    return tuple(
        tensor if i in extents else shape_placeholder(tensor) for i, tensor in enumerate(values)
    )


def input_gradients(values: Values, grads: dict[int, torch.Tensor]) -> Gradients:
    """Gradient of each extent of one input: `grads[extent]`, else zeros; None for integers."""
    zeros = (
        torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        if value.is_floating_point() and i not in grads
        else None
        for i, value in enumerate(values)
    )
    return tuple(grads.get(i, zero) for i, zero in enumerate(zeros))


def require_gradient(gradient: torch.Tensor | None) -> torch.Tensor:
    """The given gradient unchanged; AssertionError if it is None."""
    assert gradient is not None
    return gradient


def with_last_dim(ids: torch.Tensor) -> torch.Tensor:
    """Token ids or labels as (samples, positions, 1), given with or without the last dim."""
    return ids.unsqueeze(-1) if ids.dim() == 2 else ids
