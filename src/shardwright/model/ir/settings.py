"""Numbers of a model that its sizes do not tell: they change what it computes, and neither work nor memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerRotary:
    """Rotary positions of a model that was trained on shorter sequences first: slow turns are made slower.

    A turn that takes more than `trained` / `low` positions is `factor` times slower, one of less than `trained` / `high` is as it was, and
    between the two, in proportion to turns in `trained` positions.

    Args:
        factor: above 1. trained: positions of the first training. low, high: turns in them; both 0: every turn is slower.

    Source: Llama Team 2024 (arXiv 2407.21783), and the field ``rope_scaling`` of its configurations, types ``llama3`` and ``linear``.
    """

    factor: float
    trained: float = 1.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What operators compute with beside sizes and parameters.

    Args:
        rope_base: of rotary positions. longer: how they were made longer; None = not. eps: of norms.
    """

    rope_base: float = 10000.0
    longer: LongerRotary | None = None
    eps: float = 1e-5
