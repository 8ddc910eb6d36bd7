"""Norms of whole blocks by PyTorch's fused kernels of accelerators: one pass forward, and one for
each gradient.
"""

from __future__ import annotations

from typing import Final

import torch

from shardwright.execute.numerics.base.operator_protocol import Weights
from shardwright.execute.numerics.norms.norm_extent import NormPart

Kept = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Mean, scale, and copies of each element, which are 1 here."""
RMS_BACKWARD: Final = torch.ops.aten._fused_rms_norm_backward.default


def is_fused(part: NormPart, x: torch.Tensor, weights: Weights) -> bool:
    """A kernel norms it: whole blocks of an accelerator's tensor, gain and bias in its format.

    Left out: blocks that are cut, groups in a block; processors, whose kernels are no faster.
    """
    alike = all(weights[name].dtype == x.dtype for name in (part.gain, part.bias) if name)
    return bool(
        x.device.type == "cuda" and x.numel() and alike and not part.split and part.groups == 1
    )


def fused(part: NormPart, x: torch.Tensor, weights: Weights, *, eps: float) -> Kept:
    """(y, mean, scale) of blocks, the mean 0 where it is not taken away.

    Args:
        x: (samples, positions, blocks, elements of a block).
    """
    gain, bias = _affine(part, weights)
    if not part.centred:
        y, scale = torch.ops.aten._fused_rms_norm.default(x, [part.block], gain, eps)
        return y, scale.new_zeros(1), scale
    y, mean, scale = torch.ops.aten.native_layer_norm.default(x, [part.block], gain, bias, eps)
    return y, mean, scale


def fused_input_grad(
    part: NormPart, x: torch.Tensor, grad: torch.Tensor, kept: Kept, weights: Weights
) -> torch.Tensor:
    """Of blocks, in the form of their gradient."""
    return _back(part, x, grad, kept, weights, of_input=True)[0].reshape(grad.shape)


def fused_weight_grad(
    part: NormPart, x: torch.Tensor, grad: torch.Tensor, kept: Kept, weights: Weights
) -> dict[str, torch.Tensor]:
    """Of gain and bias, by name."""
    _, gain, bias = _back(part, x, grad, kept, weights, of_input=False)
    return {
        name: found
        for name, found in ((part.gain, gain), (part.bias, bias))
        if name and found is not None
    }


def _back(
    part: NormPart,
    x: torch.Tensor,
    grad: torch.Tensor,
    kept: Kept,
    weights: Weights,
    *,
    of_input: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    (gain, bias), (mean, scale, _) = _affine(part, weights), kept
    g, block = grad.to(x.dtype).reshape(x.shape), [part.block]
    of_gain, of_bias = not of_input and gain is not None, not of_input and bias is not None
    if not part.centred:
        dx, dgain = RMS_BACKWARD(g, x, block, scale, gain, [of_input, of_gain])
        return dx, dgain, None
    found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] = (
        torch.ops.aten.native_layer_norm_backward.default(
            g, x, block, mean, scale, gain, bias, [of_input, of_gain, of_bias]
        )
    )
    return found


def _affine(part: NormPart, weights: Weights) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return weights[part.gain] if part.gain else None, weights[part.bias] if part.bias else None
