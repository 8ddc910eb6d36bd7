"""How fast pairs of elements turn with a token's position, in every form of rotary positions, and
the turning itself.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from shardwright.model.ir.settings import (
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
"""Pairs between the bounds of a YaRN whose bounds are one."""


def turned_pairs(settings: Settings, width: int) -> int:
    """Pairs of a head of `width` elements that are turned."""
    if isinstance(settings.turns, GridRotary):
        parts = len(settings.turns.axes)
        return parts * (width // parts // 2)
    return int(width * settings.rope_share) // 2


def rotary_rates(
    settings: Settings, half: int, *, length: int = 0, on: torch.device
) -> torch.Tensor:
    """(half,) radians a position of each pair of elements, in float64: base^(-i / half), slower
    where the model was made longer; of positions of several axes (axes, half), 0 for those that a
    pair does not turn by.

    Args:
        length: positions of the whole sequence, for forms that differ with it.
    """
    if isinstance(settings.turns, GridRotary):
        return _by_axis(settings.turns, half, base=settings.rope_base, on=on)
    rates = _one_axis(settings, half, length=length, on=on)
    return rates if settings.turns is None else _of_text(settings.turns, rates)


def _one_axis(settings: Settings, half: int, *, length: int, on: torch.device) -> torch.Tensor:
    """(half,) rates of pairs that turn by one position."""
    pairs = torch.arange(half, device=on, dtype=torch.float64) / half
    rates = settings.rope_base**-pairs
    match settings.longer:
        case LongerRotary() as longer:
            return rates * _longer(longer, rates)
        case YarnRotary() as longer:
            return rates * _yarn(longer, half, base=settings.rope_base, on=on)
        case DynamicRotary(factor=factor, trained=trained):
            more = (
                (factor * max(length, trained) / trained - (factor - 1)) ** (half / (half - 1))
                if half > 1
                else 1.0
            )
            return (settings.rope_base * more) ** -pairs
        case LongRotary() as longer:
            factors = longer.long if length > longer.trained else longer.short
            return rates / torch.tensor(factors, device=on, dtype=torch.float64)
        case ProportionalRotary(share=share, factor=factor):
            return torch.where(
                torch.arange(half, device=on) < share * 2 * half // 2, rates / factor, 0.0
            )
    return rates


def rotary_scale(settings: Settings) -> float:
    """What turned elements are multiplied with."""
    return settings.longer.scale if isinstance(settings.longer, (YarnRotary, LongRotary)) else 1.0


def lengths_differ_above(settings: Settings) -> float | None:
    """Positions up to which sequences of all lengths turn alike; None if all do."""
    return (
        settings.longer.trained
        if isinstance(settings.longer, (DynamicRotary, LongRotary))
        else None
    )


def _by_axis(turns: GridRotary, half: int, *, base: float, on: torch.device) -> torch.Tensor:
    """(2, half) rates of pairs that turn by rows or by columns."""
    parts = len(turns.axes)
    each = half // parts
    rates = base ** -(torch.arange(each, device=on, dtype=torch.float64) / each)
    found = torch.zeros(2, half, device=on, dtype=torch.float64)
    for part, axis in enumerate(turns.axes):
        if axis < len(found):
            found[
                axis,
                slice(part, None, parts)
                if turns.in_turns
                else slice(part * each, (part + 1) * each),
            ] = rates
    return found


def _of_text(turns: TextRotary, rates: torch.Tensor) -> torch.Tensor:
    """(3, half) rates of pairs that turn by time, rows or columns."""
    pair = torch.arange(len(rates), device=rates.device)
    axis = pair % 3
    axis = torch.where(
        pair < 3 * torch.tensor([0, turns.rows, turns.columns], device=rates.device)[axis], axis, 0
    )
    return torch.zeros(3, len(rates), device=rates.device, dtype=rates.dtype).scatter_(
        0, axis.unsqueeze(0), rates.unsqueeze(0)
    )


def _longer(longer: LongerRotary, rates: torch.Tensor) -> torch.Tensor:
    """Rates of `LongerRotary` over those before."""
    if not longer.high:
        return torch.full_like(rates, 1 / longer.factor)
    turns = longer.trained * rates / (2 * pi)
    kept = ((turns - longer.low) / (longer.high - longer.low)).clamp(0.0, 1.0)
    return kept + (1 - kept) / longer.factor


def _yarn(longer: YarnRotary, half: int, *, base: float, on: torch.device) -> torch.Tensor:
    """Rates of `YarnRotary` over those before.

    Pair i turns t times in `trained` positions where i = half ln(trained / (2 pi t)) / ln(base).
    """
    low, high = (
        half * log(longer.trained / (2 * pi * turns)) / log(base)
        for turns in (longer.fast, longer.slow)
    )
    if longer.whole:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    slower = (
        (torch.arange(half, device=on, dtype=torch.float64) - low) / (high - low or LEAST_RAMP)
    ).clamp(0.0, 1.0)
    return 1 - slower + slower / longer.factor


def cosines(
    positions: torch.Tensor, rates: torch.Tensor, *, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions, 1, pairs) cosines and sines of the angles, times `scale`.

    Args:
        positions: (positions,), or (.., positions, axes) with rates of (axes, pairs), whose angles
            add up.
    """
    angles = (
        positions.to(rates.dtype) @ rates if rates.dim() == 2 else positions.unsqueeze(-1) * rates
    ).unsqueeze(-2)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, width: int, start: int = 0
) -> torch.Tensor:
    """Of every head of `width` elements, as many from `start` on as there are angles for are
    turned: element i with i + half.
    """
    heads, half = x.unflatten(-1, (-1, width)), cos.shape[-1]
    before, low, high, behind = heads.split([start, half, half, width - start - 2 * half], dim=-1)
    one, other = torch.addcmul(low * cos, high, sin, value=-1), torch.addcmul(high * cos, low, sin)
    return torch.cat([before, one, other, behind], dim=-1).flatten(-2)


def turned_apart(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, width: int, parts: int
) -> torch.Tensor:
    """Of every head of `width` elements equal parts, each turned by its share of the angles, one
    behind another (`GridRotary.apart`).
    """
    for part, (c, s) in enumerate(
        zip(cos.chunk(parts, dim=-1), sin.chunk(parts, dim=-1), strict=True)
    ):
        x = turned(x, c, s, width=width, start=part * (width // parts))
    return x
