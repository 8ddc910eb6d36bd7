"""Rule: in a domain that is no power of two, use the part that the degrees divide."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import powers_of_two


def used_devices(facts: RequestFacts) -> int:
    """Devices that are used if each domain uses the largest power of two of its devices."""
    return powers_of_two(1, facts.island)[-1] * (facts.devices // facts.island)


def advise(facts: RequestFacts) -> Advice:
    """Training advice to use the largest power of two of each domain's devices."""
    used = used_devices(facts)
    return Advice(
        words=f"Use {used:,} of the {facts.devices:,} devices.",
        max_devices=used,
    )


RULE = GuideRule(
    name="domain_divisors",
    question="All devices of a domain, or a power of two?",
    statement="TP x DP must divide the domain; else use 64 of 72.",
    source="NVIDIA Megatron Bridge, performance guide, part 5 (commit 067f987, August 2026)",
    advise=advise,
    applies=lambda facts: facts.island & (facts.island - 1) != 0 and facts.devices >= facts.island,
)
