"""Rule: over slow links shard the parameters inside a node, and replicate across nodes."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import ML_ENGINEERING, pin
from shardwright.api.guide.rules.build_break_even_questions import network_question


def advise(facts: RequestFacts) -> Advice:
    """Training advice of ZeRO-3 inside a domain; ZeRO-3 over all devices and ZeRO-1 as others."""
    full = pin("zero", 3)
    return Advice(
        words=f"ZeRO-3 inside groups of {facts.island:,}, and replicas across them (HSDP).",
        pins=(full, pin("shard", facts.island)),
        others=(
            ("ZeRO-3 over all devices", (full, pin("shard", 0))),
            ("ZeRO-1", (pin("zero", 1),)),
        ),
        break_even=network_question(
            facts,
            has=lambda grid: grid.shard == 0,
            change="The best plan with ZeRO-3 shards over all replicas",
            pins=(full, pin("shard", 0, facts.island)),
        ),
    )


RULE = GuideRule(
    name="shard_inside_node",
    question="Sharded parameters over slow links: what then?",
    statement=(
        "Shard in the node and replicate across nodes (hpZ, HSDP); else combine PP, TP and DP with"
        " ZeRO-1."
    ),
    source=f"DeepSpeed issues 6889, 7019 and 4426; {ML_ENGINEERING}, Which strategy to use",
    advise=advise,
    applies=lambda facts: facts.islands > 1 and 3 in facts.problem.runtime.zero_stages,
)
