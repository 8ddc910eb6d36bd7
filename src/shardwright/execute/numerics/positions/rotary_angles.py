"""Rotary angles of every variant of rotary positions, and the rotation of pairs.

Angles are in radians per position of each pair of elements.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from shardwright.model.ir.numerical_constants import (
    DynamicRotary,
    GridRotary,
    LongerRotary,
    LongRotary,
    ProportionalRotary,
    Settings,
    TextRotary,
    YarnRotary,
)

LEAST_RAMP = 1e-3
"""Width, in pairs, of a YaRN ramp whose two bounds are equal."""


def rotated_pair_count(settings: Settings, width: int) -> int:
    """Number of pairs of a head of `width` elements that are rotated."""
    if isinstance(settings.turns, GridRotary):
        parts = len(settings.turns.axes)
        return parts * (width // parts // 2)
    return int(width * settings.rope_share) // 2


def rotary_rates(
    settings: Settings, half: int, *, length: int = 0, device: torch.device
) -> torch.Tensor:
    """(half,), or (axes, half), radians per position of each pair: base^(-i / half), or lower.

    In float64. For positions of several axes (axes, half), with 0 for axes that do not rotate a
    pair.

    Args:
        length: positions of the whole sequence, for variants that depend on it.
    """
    if isinstance(settings.turns, GridRotary):
        return _rates_by_row_and_column(
            settings.turns, half, base=settings.rope_base, device=device
        )
    rates = _rates_of_one_axis(settings, half, length=length, device=device)
    return rates if settings.turns is None else _rates_by_time_row_and_column(settings.turns, rates)


def _rates_of_one_axis(
    settings: Settings, half: int, *, length: int, device: torch.device
) -> torch.Tensor:
    """(half,) radians per position of each pair on one axis, lower for extended contexts."""
    pairs = torch.arange(half, device=device, dtype=torch.float64) / half
    rates = settings.rope_base**-pairs
    match settings.longer:
        case LongerRotary() as longer:
            return rates * _longer_rotary_factors(longer, rates)
        case YarnRotary() as longer:
            return rates * _yarn_factors(longer, half, base=settings.rope_base, device=device)
        case DynamicRotary(factor=factor, trained=trained):
            base_factor = (
                (factor * max(length, trained) / trained - (factor - 1)) ** (half / (half - 1))
                if half > 1
                else 1.0
            )
            return (settings.rope_base * base_factor) ** -pairs
        case LongRotary() as longer:
            factors = longer.long if length > longer.trained else longer.short
            return rates / torch.tensor(factors, device=device, dtype=torch.float64)
        case ProportionalRotary(share=share, factor=factor):
            return torch.where(
                torch.arange(half, device=device) < share * 2 * half // 2, rates / factor, 0.0
            )
    return rates


def rotary_scale(settings: Settings) -> float:
    """Factor of rotated elements (YaRN, LongRoPE); 1 for other variants."""
    return settings.longer.scale if isinstance(settings.longer, (YarnRotary, LongRotary)) else 1.0


def largest_length_with_equal_rotation(settings: Settings) -> float | None:
    """Largest sequence length up to which all lengths rotate alike; None if all lengths do."""
    return (
        settings.longer.trained
        if isinstance(settings.longer, (DynamicRotary, LongRotary))
        else None
    )


def _rates_by_row_and_column(
    turns: GridRotary, half: int, *, base: float, device: torch.device
) -> torch.Tensor:
    """(2, half) radians per row and column of each pair; 0 on an axis that does not rotate it."""
    parts = len(turns.axes)
    pairs_per_part = half // parts
    rates = base ** -(
        torch.arange(pairs_per_part, device=device, dtype=torch.float64) / pairs_per_part
    )
    axis_rates = torch.zeros(2, half, device=device, dtype=torch.float64)
    for part, axis in enumerate(turns.axes):
        if axis < len(axis_rates):
            axis_rates[
                axis,
                slice(part, None, parts)
                if turns.in_turns
                else slice(part * pairs_per_part, (part + 1) * pairs_per_part),
            ] = rates
    return axis_rates


def _rates_by_time_row_and_column(turns: TextRotary, rates: torch.Tensor) -> torch.Tensor:
    """(3, half) radians per unit of time, row and column of each pair; 0 on its two other axes."""
    pair = torch.arange(len(rates), device=rates.device)
    axis = pair % 3
    axis = torch.where(
        pair < 3 * torch.tensor([0, turns.rows, turns.columns], device=rates.device)[axis], axis, 0
    )
    return torch.zeros(3, len(rates), device=rates.device, dtype=rates.dtype).scatter_(
        0, axis.unsqueeze(0), rates.unsqueeze(0)
    )


def _longer_rotary_factors(longer: LongerRotary, rates: torch.Tensor) -> torch.Tensor:
    """Factors of `LongerRotary` on each pair's rate: 1 / factor, or by wavelength (Llama 3)."""
    if not longer.high:
        return torch.full_like(rates, 1 / longer.factor)
    turns = longer.trained * rates / (2 * pi)
    kept_share = ((turns - longer.low) / (longer.high - longer.low)).clamp(0.0, 1.0)
    return kept_share + (1 - kept_share) / longer.factor


def _yarn_factors(
    longer: YarnRotary, half: int, *, base: float, device: torch.device
) -> torch.Tensor:
    """(half,) factors of the rates: from 1 for fast pairs to 1 / factor for slow pairs (YaRN).

    Pair i makes t rotations in `trained` positions where i = half ln(trained / (2 pi t)) /
    ln(base).
    """
    low, high = (
        half * log(longer.trained / (2 * pi * turns)) / log(base)
        for turns in (longer.fast, longer.slow)
    )
    if longer.whole:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    slowed_share = (
        (torch.arange(half, device=device, dtype=torch.float64) - low) / (high - low or LEAST_RAMP)
    ).clamp(0.0, 1.0)
    return 1 - slowed_share + slowed_share / longer.factor


def cosines_and_sines(
    positions: torch.Tensor, rates: torch.Tensor, *, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosines, sines) of the angles x `scale`, (.., positions, 1, pairs); axes' angles add up.

    Args:
        positions: (positions,), or (.., positions, axes) with rates of (axes, pairs), whose angles
            add up.
    """
    angles = (
        positions.to(rates.dtype) @ rates if rates.dim() == 2 else positions.unsqueeze(-1) * rates
    ).unsqueeze(-2)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotate_pairs(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, width: int, start: int = 0
) -> torch.Tensor:
    """Rotate pairs (i, i + half) of each head's 2 x half elements from `start` on; keep others.

    Heads have `width` elements; as many pairs are rotated as there are angles.
    """
    heads, half = x.unflatten(-1, (-1, width)), cos.shape[-1]
    unrotated_before, low, high, unrotated_after = heads.split(
        [start, half, half, width - start - 2 * half], dim=-1
    )
    rotated_low, rotated_high = (
        torch.addcmul(low * cos, high, sin, value=-1),
        torch.addcmul(high * cos, low, sin),
    )
    return torch.cat(
        [unrotated_before, rotated_low, rotated_high, unrotated_after], dim=-1
    ).flatten(-2)


def rotate_parts(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, width: int, parts: int
) -> torch.Tensor:
    """Rotate `parts` equal parts of each `width`-element head, each by its share of the angles.

    Heads have `width` elements (`GridRotary.apart`).
    """
    for part, (c, s) in enumerate(
        zip(cos.chunk(parts, dim=-1), sin.chunk(parts, dim=-1), strict=True)
    ):
        x = rotate_pairs(x, c, s, width=width, start=part * (width // parts))
    return x
