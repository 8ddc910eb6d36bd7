"""Rule: the smallest worker that fits, and replicas of it, give the most throughput."""

from __future__ import annotations

from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.api.guide.serving_rules.break_even_load_and_prompt_length import load_question


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving advice of replicas of the least TP that fits, against TP over a whole domain."""
    width = facts.smallest_width
    if not width:
        return ServingAdvice(notes=("With no TP degree do the weights and a request fit.",))
    widest = min(facts.island, facts.devices)
    narrow = f"agg {facts.devices // width}x(tp{width})"
    wide = f"agg {facts.devices // widest}x(tp{widest})"
    return ServingAdvice(
        words=f"TP {width}, and {facts.devices // width} replicas.",
        deployment=narrow,
        others=((f"TP {widest}", wide),),
        break_even=load_question(
            facts, narrow, wide, change=f"TP {width} has more tokens a second than TP {widest}"
        ),
    )


RULE = ServingRule(
    name="smallest_worker",
    question="Wide workers or replicas?",
    statement="The least tensor parallelism that fits gives the most throughput, more the latency.",
    source="common practice; vLLM documentation, optimization and tuning",
    advise=advise,
)
