"""Rule: expert and tensor parallelism together stay inside the scale-up domain."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import pin, powers_of_two
from shardwright.api.guide.rules.build_break_even_questions import network_question
from shardwright.search.search_request import Choices


def advise(facts: RequestFacts) -> Advice:
    """Training advice of EP up to the scale-up domain with TP 1; EP across domains as others."""
    divisors = [ep for ep in powers_of_two(1, facts.devices) if facts.experts % ep == 0]
    inside = [ep for ep in divisors if ep <= facts.island]
    across = [ep for ep in divisors if ep > facts.island]
    others: list[tuple[str, Choices]] = []
    if across:
        others.append(("EP across domains", (pin("ep", *across),)))
        if "dispatcher" in dict(facts.problem.runtime.own):
            deep_ep = pin("dispatcher", "flex")
            others.append(("EP across domains with DeepEP", (pin("ep", *across), deep_ep)))
    return Advice(
        words=f"EP x TP of at most {facts.island:,} devices.",
        pins=(pin("ep", *inside), pin("tp", 1)),
        others=tuple(others),
        break_even=network_question(
            facts,
            has=lambda grid: grid.ep > facts.island,
            change="The best plan has EP across domains",
        ),
    )


RULE = GuideRule(
    name="experts_inside_domain",
    question="Expert parallelism across nodes?",
    statement=(
        "EP x TP inside the fast domain; beyond it with overlap and DeepEP, which helps for EP"
        " above 8 and many experts a token."
    ),
    source="NVIDIA Megatron Bridge; NVIDIA/Megatron-LM issue 1456",
    advise=advise,
    applies=lambda facts: facts.experts > 0 and facts.devices > 1,
)
