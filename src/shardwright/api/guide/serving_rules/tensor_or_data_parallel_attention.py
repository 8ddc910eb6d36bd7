"""Rule: tensor or data parallel attention."""

from __future__ import annotations

from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.api.guide.serving_rules.break_even_load_and_prompt_length import load_question


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving advice of DP attention with EP over up to 8 devices of a domain, against TP there."""
    width = min(facts.island, facts.devices, 8)
    count = facts.devices // width
    data, tensor = f"agg {count}x(dpa{width} ep{width})", f"agg {count}x(tp{width})"
    return ServingAdvice(
        words=f"Data-parallel attention over {width} devices, with EP {width}.",
        deployment=data,
        break_even=load_question(
            facts,
            data,
            tensor,
            change=f"Data-parallel attention has more tokens a second than TP {width}",
        ),
        others=(
            (f"TP {width}", tensor),
            (f"TP {width} with EP {width}", f"agg {count}x(tp{width} ep{width})"),
        ),
    )


RULE = ServingRule(
    name="tensor_or_data_attention",
    question="Tensor or data parallel attention?",
    statement=(
        "Latent attention has one head of keys, which TP repeats on each device: data-parallel"
        " attention keeps each request's cache once, and pays at many requests."
    ),
    source="SGLang documentation, DeepSeek; DeepSeek-V3 technical report, section 3.4",
    advise=advise,
    applies=lambda facts: facts.experts > 0 and facts.devices > 1,
)
