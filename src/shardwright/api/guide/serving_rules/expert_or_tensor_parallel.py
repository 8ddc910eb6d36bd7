"""Rule: expert or tensor parallelism for the experts of a served model."""

from __future__ import annotations

from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.api.guide.serving_rules.break_even_load_and_prompt_length import load_question


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving advice of TP for the experts below 8 requests in flight an expert, else of EP."""
    width = min(facts.island, facts.devices, 8)
    count = facts.devices // width
    tensor = f"agg {count}x(tp{width})"
    expert = f"agg {count}x(tp{width} ep{width})"
    small = facts.request.concurrency < 8 * facts.experts
    return ServingAdvice(
        words=f"{'TP' if small else 'EP'} {width} for the experts.",
        deployment=tensor if small else expert,
        others=((("EP", expert) if small else ("TP", tensor)),),
        break_even=load_question(
            facts,
            expert,
            tensor,
            change=f"EP {width} for the experts has more tokens a second than TP {width}",
        ),
    )


RULE = ServingRule(
    name="expert_or_tensor_parallel",
    question="Expert or tensor parallelism for the experts?",
    statement=(
        "TP balances better at small batches on one node; EP with a real all-to-all at scale."
    ),
    source="NVIDIA/TensorRT-LLM issue 2331; databricks/dbrx issue 8",
    advise=advise,
    applies=lambda facts: facts.experts > 0 and facts.devices > 1,
)
