"""Rule: the smallest worker that fits, and replicas of it, give the most throughput."""

from __future__ import annotations

from shardwright.api.guide.serving_facts import ServingFacts
from shardwright.api.guide.serving_rule import ServingAdvice, ServingRule


def advise(facts: ServingFacts) -> ServingAdvice:
    """Replicas of the least TP that fits, against TP over a whole domain."""
    width = facts.smallest_width
    if not width:
        return ServingAdvice(notes=("With no TP degree do the weights and a request fit.",))
    widest = min(facts.island, facts.devices)
    return ServingAdvice(
        words=f"TP {width}, and {facts.devices // width} replicas.",
        deployment=f"agg {facts.devices // width}x(tp{width})",
        others=((f"TP {widest}", f"agg {facts.devices // widest}x(tp{widest})"),),
    )


RULE = ServingRule(
    name="smallest_worker",
    question="Wide workers or replicas?",
    statement="The least tensor parallelism that fits gives the most throughput, more the latency.",
    source="common practice; vLLM documentation, optimization and tuning",
    advise=advise,
)
