"""Rule: which modules to recompute in models with latent attention or experts."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import pin
from shardwright.search.search_request import Choices


def advise(facts: RequestFacts) -> Advice:
    """Training advice to recompute latent attention's up projections, else expert activations."""
    latent = facts.has_latent_attention
    first = "recompute_mla" if latent else "recompute_moe_act"
    others: list[tuple[str, Choices]] = [
        ("no module", (pin("recompute_norms", "off"), pin(first, "off")))
    ]
    if facts.experts:
        others.append(("whole experts", (pin("recompute_moe", "on"),)))
    return Advice(
        words=(
            "Recompute the up projections of latent attention first."
            if latent
            else "Recompute the experts' activations first."
        ),
        pins=(pin(first, "on"),),
        others=tuple(others),
    )


RULE = GuideRule(
    name="recomputed_modules",
    question="Which modules to recompute?",
    statement=(
        "Latent attention: its up projections first. Experts: their activations, then norms; whole"
        " experts repeat their all-to-all."
    ),
    source="NVIDIA Megatron Bridge, skill activation-recompute (commit 067f987, August 2026)",
    advise=advise,
    applies=lambda facts: (
        (facts.experts > 0 or facts.has_latent_attention)
        and "recompute_moe_act" in dict(facts.problem.runtime.own)
    ),
)
