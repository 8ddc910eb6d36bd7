"""Break-even question over global batches, which several rules ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwright.api.guide.guide_rule import BreakEvenQuestion
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.pin_choices import powers_of_two
from shardwright.strategy.grid.parallelism_grid import Grid


def batch_question(
    facts: RequestFacts, *, has: Callable[[Grid], bool], change: str
) -> BreakEvenQuestion:
    """Question from which global batch on the best plan has a property: 1/8 to 8 times its own."""
    least = max(facts.request.global_batch // 8, 1)
    return BreakEvenQuestion(
        axis="global batch",
        values=tuple(least * factor for factor in powers_of_two(1, 64)),
        request_at=lambda batch: replace(facts.request, global_batch=batch),
        has=has,
        change=change,
    )
