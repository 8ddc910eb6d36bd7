"""Element-wise activation functions and their gradients, by name."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.model.ir.numerical_constants import QUICK, USUAL, Settings


def activation_name(settings: Settings, *, gated: bool) -> str:
    """Activation that the settings name, else silu if `gated` and gelu_tanh if not."""
    return settings.activation or USUAL[gated]


def apply_activation(name: str, x: torch.Tensor) -> torch.Tensor:
    """Apply an activation function element by element, by name.

    ``quick_gelu`` is x sigmoid(1.702 x), ``relu2`` the square of max(x, 0).
    """
    match name:
        case "silu":
            return functional.silu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "gelu":
            return functional.gelu(x)
        case "quick_gelu":
            return x * torch.sigmoid(QUICK * x)
        case "relu":
            return functional.relu(x)
        case "relu2":
            return functional.relu(x).square()
    raise AssertionError(name)


def clamped_gate(x: torch.Tensor, y: torch.Tensor, *, settings: Settings) -> torch.Tensor:
    """Clamped SwiGLU g sigmoid(slope g) (1 + y), with g = min(x, limit) and y clamped.

    y is clamped to [-limit, limit] (OpenAI 2025, arXiv 2508.10925, section 2.2).
    """
    limit = settings.gate_limit
    gate = x.clamp(max=limit)
    return gate * torch.sigmoid(settings.gate_slope * gate) * (y.clamp(-limit, limit) + 1)


def activation_gradient(name: str, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient of an activation's input: grad times f'(x), by name."""
    match name:
        case "silu":
            return torch.ops.aten.silu_backward.default(grad, x)
        case "gelu_tanh" | "gelu":
            return torch.ops.aten.gelu_backward.default(
                grad, x, approximate="tanh" if name == "gelu_tanh" else "none"
            )
        case "quick_gelu":
            gate = torch.sigmoid(QUICK * x)
            return grad * gate * (1 + QUICK * x * (1 - gate))
        case "relu":
            return grad * (x > 0)
        case "relu2":
            return grad * 2 * functional.relu(x)
    raise AssertionError(name)
