"""Norms by PyTorch's fused CUDA kernels: one pass forward, and one for each gradient.

Only norms whose blocks are not cut over devices use them.
"""

from __future__ import annotations

from typing import Final

import torch

from shardwright.execute.numerics.base.operator_protocol import Weights
from shardwright.execute.numerics.norms.norm_groups_gain_and_bias_of_one_extent import ExtentNorm

NormStatistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Mean, scale, and the number of devices that hold each element, which is 1 here."""
RMS_BACKWARD: Final = torch.ops.aten._fused_rms_norm_backward.default


def is_fused_norm(part: ExtentNorm, x: torch.Tensor, weights: Weights) -> bool:
    """True if a fused kernel computes the norm: uncut blocks on a GPU, parameters in its format.

    Left out: blocks that are cut, groups in a block; CPUs, whose fused kernels are not faster.
    """
    same_format = all(weights[name].dtype == x.dtype for name in (part.gain, part.bias) if name)
    return bool(
        x.device.type == "cuda"
        and x.numel()
        and same_format
        and not part.split
        and part.groups == 1
    )


def fused_norm(
    part: ExtentNorm, x: torch.Tensor, weights: Weights, *, eps: float
) -> NormStatistics:
    """(y with gain and bias, mean, 1 / std) of normed blocks; mean 0 where it is not subtracted.

    Args:
        x: (samples, positions, blocks, elements of a block).
    """
    gain, bias = _gain_and_bias(part, weights)
    if not part.centred:
        y, scale = torch.ops.aten._fused_rms_norm.default(x, [part.block], gain, eps)
        return y, scale.new_zeros(1), scale
    y, mean, scale = torch.ops.aten.native_layer_norm.default(x, [part.block], gain, bias, eps)
    return y, mean, scale


def fused_norm_input_grad(
    part: ExtentNorm,
    x: torch.Tensor,
    grad: torch.Tensor,
    statistics: NormStatistics,
    weights: Weights,
) -> torch.Tensor:
    """Gradient of a norm's input blocks, in the shape of `grad`."""
    return _run_backward_kernel(part, x, grad, statistics, weights, of_input=True)[0].reshape(
        grad.shape
    )


def fused_norm_weight_grad(
    part: ExtentNorm,
    x: torch.Tensor,
    grad: torch.Tensor,
    statistics: NormStatistics,
    weights: Weights,
) -> dict[str, torch.Tensor]:
    """Gradients of a norm's gain and bias, by name."""
    _, gain, bias = _run_backward_kernel(part, x, grad, statistics, weights, of_input=False)
    return {
        name: parameter_grad
        for name, parameter_grad in ((part.gain, gain), (part.bias, bias))
        if name and parameter_grad is not None
    }


def _run_backward_kernel(
    part: ExtentNorm,
    x: torch.Tensor,
    grad: torch.Tensor,
    statistics: NormStatistics,
    weights: Weights,
    *,
    of_input: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(input, gain, bias) gradients: the input's with `of_input`, else only the parameters'."""
    (gain, bias), (mean, scale, _) = _gain_and_bias(part, weights), statistics
    g, block = grad.to(x.dtype).reshape(x.shape), [part.block]
    of_gain, of_bias = not of_input and gain is not None, not of_input and bias is not None
    if not part.centred:
        dx, dgain = RMS_BACKWARD(g, x, block, scale, gain, [of_input, of_gain])
        return dx, dgain, None
    gradients: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] = (
        torch.ops.aten.native_layer_norm_backward.default(
            g, x, block, mean, scale, gain, bias, [of_input, of_gain, of_bias]
        )
    )
    return gradients


def _gain_and_bias(
    part: ExtentNorm, weights: Weights
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(gain, bias) of the norm; None for a missing one."""
    return weights[part.gain] if part.gain else None, weights[part.bias] if part.bias else None
