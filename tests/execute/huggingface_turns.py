"""Rotary positions of Hugging Face families in plain torch, by the fields of their
configurations."""

from __future__ import annotations

from math import ceil, floor, log, pi, sqrt

import torch

from tests.execute.huggingface_layouts import Config


def turns(c: Config, width: int, length: int) -> tuple[torch.Tensor, float]:
    """(radians a position of every pair of a head's turned elements, what those are multiplied
    with)."""
    dim = int(width * c.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    base, rope, context = c["rope_theta"], c.get("rope_scaling") or {}, c["max_position_embeddings"]
    kind, trained = (
        rope.get("rope_type"),
        c.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings"),
    )
    if kind == "dynamic" and length > context:
        base = base * (rope["factor"] * length / context - (rope["factor"] - 1)) ** (
            dim / (dim - 2)
        )
    rates = 1.0 / base**exponents
    if kind == "longrope":
        factors = torch.tensor(
            rope["long_factor" if length > trained else "short_factor"], dtype=torch.float64
        )
        return rates / factors, sqrt(1 + log(context / trained) / log(trained))
    if kind != "yarn":
        return rates, 1.0

    def pair_of(turned: float) -> float:
        return dim * log(trained / (turned * 2 * pi)) / (2 * log(base))

    low, high = pair_of(rope.get("beta_fast", 32)), pair_of(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    slower = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    numerator, denominator = (scaled(c, name) for name in ("mscale", "mscale_all_dim"))
    scale = numerator / denominator if "mscale" in rope else 0.1 * log(rope["factor"]) + 1
    return rates / rope["factor"] * slower + rates * (1 - slower), scale


def scaled(c: Config, name: str) -> float:
    """0.1 m ln(factor) + 1 where m is a field of the rotary positions; 1 without it."""
    rope = c.get("rope_scaling") or {}
    return 0.1 * rope[name] * log(rope["factor"]) + 1 if rope.get(name) else 1.0


def rope(x: torch.Tensor, c: Config) -> torch.Tensor:
    """(batch, heads, tokens, width), as Llama's class in Transformers turns it, and Phi-3's a share
    of it."""
    rates, scale = turns(c, x.shape[-1], x.shape[-2])
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
    emb = torch.cat((angles, angles), dim=-1)
    x, rest = x.split([emb.shape[-1], x.shape[-1] - emb.shape[-1]], dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat(
        (scale * (x * emb.cos() + torch.cat((-b, a), dim=-1) * emb.sin()), rest), dim=-1
    )


def rope_pairs(x: torch.Tensor, c: Config) -> torch.Tensor:
    """As DeepSeek's own code turns it: (even, odd) elements are complex numbers."""
    rates, scale = turns(c, x.shape[-1], x.shape[-2])
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) * torch.polar(
        torch.full_like(angles, scale), angles
    )
    return torch.view_as_real(z).flatten(-2)
