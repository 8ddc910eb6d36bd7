"""Cross-entropy by PyTorch's fused log-softmax kernels."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.group_calls import group_members
from shardwright.execute.numerics.base.local_tensors import at_least_float32
from shardwright.execute.transport.torch_device import OperatorShare


def is_fused(place: OperatorShare, logits: torch.Tensor) -> bool:
    """True if the kernels compute the loss: logits that are whole, without a factor and without a
    cap.
    """
    plain = place.settings.logits_factor == 1.0 and not place.settings.logits_cap
    return bool(logits.numel() and plain and not group_members(place, "vocab"))


def fused_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(-log softmax(logits)[label], logarithm of the softmax's denominator), each (samples,
    positions, 1), in float32 or finer.

    Args:
        labels: (samples, positions, 1), negative where there is nothing to predict: the first is 0
            there.
    """
    rows = labels.clamp(min=0)
    log_probability = torch.log_softmax(
        logits, -1, dtype=at_least_float32(logits[:0]).dtype
    ).gather(-1, rows)
    log_denominator = logits.gather(-1, rows).to(log_probability.dtype) - log_probability
    return torch.where(labels >= 0, -log_probability, 0), log_denominator


def fused_cross_entropy_grad(
    logits: torch.Tensor, labels: torch.Tensor, log_denominator: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """(softmax - one-hot) x scale, in the logits' format. At the label the difference is taken
    before rounding.

    Args:
        log_denominator: of `fused_cross_entropy`.
        scale: (samples, positions, 1), 0 where there is nothing to predict.
    """
    rows = labels.clamp(min=0)
    label_grad = (
        logits.gather(-1, rows).to(log_denominator.dtype) - log_denominator
    ).expm1() * scale
    grads = torch.softmax(logits, -1).mul_(scale)
    return grads.scatter_(-1, rows, label_grad.to(grads.dtype))
