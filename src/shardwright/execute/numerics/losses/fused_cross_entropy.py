"""Cross-entropy over whole logits by PyTorch's softmax kernels, each one pass."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.group_calls import members
from shardwright.execute.numerics.base.local_tensors import fine
from shardwright.execute.transport.torch_device import OperatorShare


def is_fused(place: OperatorShare, logits: torch.Tensor) -> bool:
    """The kernels compute it: of logits that are whole, and have no factor and no bound."""
    plain = place.settings.logits_factor == 1.0 and not place.settings.logits_cap
    return bool(logits.numel() and plain and not members(place, "vocab"))


def fused(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(-log softmax(logits)[label], logarithm of the softmax's denominator), each (samples,
    positions, 1), in float32 or finer.

    Args:
        labels: (samples, positions, 1), negative where there is nothing to predict: the first is 0
            there.
    """
    rows = labels.clamp(min=0)
    found = torch.log_softmax(logits, -1, dtype=fine(logits[:0]).dtype).gather(-1, rows)
    normal = logits.gather(-1, rows).to(found.dtype) - found
    return torch.where(labels >= 0, -found, 0), normal


def fused_grad(
    logits: torch.Tensor, labels: torch.Tensor, normal: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """(softmax - one) x scale, in the logits' format; where the label is, the difference is taken
    before it is rounded.

    Args:
        normal: of `fused`.
        scale: (samples, positions, 1), 0 where there is nothing to predict.
    """
    rows = labels.clamp(min=0)
    chosen = (logits.gather(-1, rows).to(normal.dtype) - normal).expm1() * scale
    found = torch.softmax(logits, -1).mul_(scale)
    return found.scatter_(-1, rows, chosen.to(found.dtype))
