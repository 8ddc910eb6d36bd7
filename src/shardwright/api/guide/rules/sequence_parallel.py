"""Rule: sequence parallelism is on with every tensor parallelism."""

from __future__ import annotations

from shardwright.api.guide.best_plan_record import with_pins
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, pin


def advise(facts: RequestFacts) -> Advice:
    """Training advice of sequence parallelism on, against off, at the best plan's TP or at TP 2."""
    degree = facts.grid.tp if facts.grid.tp > 1 else 2
    return Advice(
        words=f"With TP {degree}: sequence parallelism on.",
        pins=(pin("sp", 1),),
        others=(("off", (pin("sp", 0),)),),
        request=with_pins(facts.request, (pin("tp", degree),)),
    )


RULE = GuideRule(
    name="sequence_parallel",
    question="Sequence parallelism with tensor parallelism?",
    statement="Always with TP above 1: the same volume and less memory.",
    source=f"{BRIDGE}; Megatron Bridge parallelism guidelines",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
