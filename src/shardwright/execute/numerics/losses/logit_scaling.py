"""Scaling and soft cap of logits, and its gradient."""

from __future__ import annotations

import torch

from shardwright.model.ir.numerical_constants import Settings


def scaled_logits(products: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Scale and cap logits: cap tanh(factor x / cap), or factor x without a cap.

    With factor 0.5 and cap 2, x = 4 becomes 2 tanh(1) = 1.523.
    """
    scaled = products if settings.logits_factor == 1.0 else products * settings.logits_factor
    return (
        settings.logits_cap * torch.tanh(scaled / settings.logits_cap)
        if settings.logits_cap
        else scaled
    )


def scaled_logits_grad(
    grad: torch.Tensor, logits: torch.Tensor, settings: Settings
) -> torch.Tensor:
    """Gradient of unscaled logits, from the gradient of `logits`, which are scaled and capped.

    d / dx cap tanh(f x / cap) = f (1 - (logits / cap)^2).
    """
    if settings.logits_cap:
        grad = grad * (1 - (logits / settings.logits_cap).square())
    return grad if settings.logits_factor == 1.0 else grad * settings.logits_factor


def largest_logits(logits: torch.Tensor) -> torch.Tensor:
    """(.., 1) the largest logit of the device's part of the vocabulary; -inf without a part."""
    return (
        logits.amax(-1, keepdim=True)
        if logits.shape[-1]
        else logits.new_full((*logits.shape[:-1], 1), -torch.inf)
    )
