"""Rule: degrees of a mixture of experts: EP first, TP by active parameters, PP for depth."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import pin, powers_of_two


def advise(facts: RequestFacts) -> Advice:
    """Training advice of TP 1 or 2 and the two largest EP up to 64; others: no EP, TP from 4."""
    widest = [ep for ep in powers_of_two(2, 64) if facts.experts % ep == 0 and ep <= facts.devices]
    widest = widest[-2:] or [1]
    return Advice(
        words=f"TP 1 to 2, EP {' or '.join(map(str, widest))}, PP for depth, whole experts.",
        pins=(pin("tp", 1, 2), pin("ep", *widest), pin("etp", 1)),
        others=(
            ("no EP", (pin("ep", 1),)),
            ("TP 4 and more", (pin("tp", *powers_of_two(4, max(facts.island, 4))),)),
        ),
        formulas=(
            formula(
                "share of the parameters that a token uses",
                "A / N",
                symbol("A", "parameters that a token uses", facts.active_parameters),
                symbol("N", "parameters", facts.parameters),
                unit="share",
                source="definition",
            ),
        ),
    )


RULE = GuideRule(
    name="expert_degrees",
    question="TP, PP or EP for the experts?",
    statement=(
        "TP by active parameters (1 to 2), EP first, PP for depth, no TP inside experts."
        " DeepSeek-V3: TP 2, PP 8 to 16, EP 64; Qwen3-235B: TP 2, EP 32, PP 8."
    ),
    source="NVIDIA Megatron Bridge, skills for mixtures of experts (commit 067f987, August 2026)",
    advise=advise,
    applies=lambda facts: facts.experts > 0 and facts.devices > 1,
)
