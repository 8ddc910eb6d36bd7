"""Rule: a large dense model takes the whole node for tensor parallelism."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, pin
from shardwright.api.guide.rules.build_break_even_questions import batch_question

NODE: Final = 8
LARGE: Final = 30e9
"""Devices of the usual node, and parameters from which people use all of it for TP."""


def advise(facts: RequestFacts) -> Advice:
    """Training advice of TP 8; others: TP 4 with PP 2, TP 4. Asks from which batch TP 8 is best."""
    return Advice(
        words=f"TP {NODE}.",
        pins=(pin("tp", NODE),),
        others=(
            (f"TP {NODE // 2}, PP 2", (pin("tp", NODE // 2), pin("pp", 2))),
            (f"TP {NODE // 2}", (pin("tp", NODE // 2),)),
        ),
        break_even=batch_question(
            facts,
            has=lambda grid: grid.tp >= NODE,
            change=f"The best plan has TP {NODE} or more",
        ),
    )


RULE = GuideRule(
    name="largest_tensor_parallel_degree",
    question="Tensor parallelism over the whole node?",
    statement=(
        "Large dense models take TP 8. Often a loss: utilisation is low; less TP and more PP may be"
        " faster where both fit."
    ),
    source=f"{BRIDGE}; NVIDIA/Megatron-LM issue 1059",
    advise=advise,
    applies=lambda facts: (
        not facts.experts
        and facts.parameters >= LARGE
        and facts.island >= NODE
        and facts.devices >= 2 * NODE
    ),
)
