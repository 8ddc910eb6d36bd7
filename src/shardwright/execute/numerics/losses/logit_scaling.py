"""A model's logits, of what its head multiplies: a factor, and a bound of their size (Gemma Team
2024, arXiv 2408.00118, section 2).
"""

from __future__ import annotations

import torch

from shardwright.model.ir.settings import Settings


def logits_of(products: torch.Tensor, settings: Settings) -> torch.Tensor:
    """cap tanh(factor x / cap), or factor x without a cap: with factor 0.5 and cap 2, x = 4 becomes
    2 tanh(1) = 1.523.
    """
    scaled = products if settings.logits_factor == 1.0 else products * settings.logits_factor
    return (
        settings.logits_cap * torch.tanh(scaled / settings.logits_cap)
        if settings.logits_cap
        else scaled
    )


def products_grad(grad: torch.Tensor, logits: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The gradient of what the projection made, of that of the `logits`: d / dx cap tanh(f x / cap)
    = f (1 - (logits / cap)^2).
    """
    if settings.logits_cap:
        grad = grad * (1 - (logits / settings.logits_cap).square())
    return grad if settings.logits_factor == 1.0 else grad * settings.logits_factor
