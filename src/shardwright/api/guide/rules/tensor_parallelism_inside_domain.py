"""Rule: tensor parallelism stays inside the scale-up domain, and stops where it is bound."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import (
    BRIDGE,
    ML_ENGINEERING,
    PLAYBOOK,
    SCALING_BOOK,
    pin,
    powers_of_two,
)
from shardwright.api.guide.rules.build_break_even_questions import network_question

USUAL: Final = 8
"""TP degree that is shown beside the best."""
WIDEST: Final = 32
"""Largest TP degree across domains that is searched: nobody would use more."""


def advise(facts: RequestFacts) -> Advice:
    """Training advice of any TP up to the domain; TP 8 at most, and twice the domain, as others."""
    inside = powers_of_two(1, min(facts.island, facts.devices))
    usual, across = min(inside[-1], USUAL), 2 * inside[-1]
    others = [(f"TP {usual}", (pin("tp", usual),))]
    if across <= min(facts.devices, WIDEST) and facts.island < facts.devices:
        others.append((f"TP {across}, across domains,", (pin("tp", across),)))
    return Advice(
        words=f"Keep TP inside the scale-up domain of {facts.island:,} devices.",
        pins=(pin("tp", *inside),),
        others=tuple(others),
        break_even=network_question(
            facts,
            has=lambda grid: grid.tp > facts.island,
            change="The best plan has TP across domains",
        ),
        formulas=(
            formula(
                "TP degree at which communication takes as long as the multiplications",
                "F * W / C",
                symbol("F", "width of the feed-forward layer", facts.feed_forward_width),
                symbol("W", "bytes/s of a device in its domain", facts.island_bytes_per_s),
                symbol("C", "peak FLOP/s of a device", facts.peak_flops),
                source=f"{SCALING_BOOK}, tensor parallelism",
            ),
        ),
    )


RULE = GuideRule(
    name="tensor_parallel_limit",
    question="When does tensor parallelism stop?",
    statement=(
        "Tensor parallelism across scale-up domains is almost always a loss; the domain is what"
        " NVLink joins (72 on NVL72), not the node."
    ),
    source=f"{BRIDGE}; {ML_ENGINEERING}; {PLAYBOOK}, Tensor Parallelism",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
