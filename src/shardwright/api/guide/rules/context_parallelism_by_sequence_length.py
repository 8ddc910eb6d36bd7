"""Rule: context parallelism by sequence length."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE_STRATEGIES, pin
from shardwright.api.guide.rules.build_break_even_questions import length_question
from shardwright.search.search_request import Choices

STEPS: Final[tuple[tuple[int, str, Choices], ...]] = (
    (8192, "No context parallelism.", (pin("cp", 1),)),
    (32768, "CP 2.", (pin("cp", 2),)),
    (131072, "CP 4 to 8.", (pin("cp", 4, 8),)),
    (1 << 62, "CP 8 and more.", (pin("cp", 8, 16, 32, 64),)),
)
"""(largest sequence length of a row, advice, pins)."""


def advise(facts: RequestFacts) -> Advice:
    """Training advice of CP by sequence length; asks from which length CP is best."""
    words, pins = next((w, p) for most, w, p in STEPS if facts.request.seq_len <= most)
    return Advice(
        words=words,
        pins=pins,
        others=() if pins == (pin("cp", 1),) else (("no CP", (pin("cp", 1),)),),
        break_even=length_question(
            facts,
            has=lambda grid: grid.cp > 1,
            change="The best plan uses context parallelism, at equal tokens a step",
        ),
    )


RULE = GuideRule(
    name="context_parallel_length",
    question="From which sequence length on context parallelism?",
    statement="Above 8k to 32k tokens CP 2; above that CP 4 to 8, in two levels where CP is large.",
    source=f"{BRIDGE_STRATEGIES}; pytorch/torchtitan pull request 678",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
