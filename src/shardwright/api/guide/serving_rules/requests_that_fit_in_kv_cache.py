"""Rule: requests that fit in the KV cache of a worker."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving formula of full-length requests in a device's KV cache under the best deployment."""
    best = facts.best
    if best.answer is None:
        return ServingAdvice(notes=(f"No deployment fits: {best.why}.",))
    memory = best.answer.pools[0].memory
    tokens = facts.prompt + facts.answer
    return ServingAdvice(
        formulas=(
            formula(
                "requests at their full length that the cache of a device holds",
                "M / (T * c)",
                symbol("M", "bytes of the cache of a device", memory.cache, "bytes"),
                symbol("T", "tokens of a prompt and its answer", tokens, "tokens"),
                symbol("c", "bytes of a token in the cache of a device", memory.token, "bytes"),
                unit="requests",
                source="keys and values of all layers; docs/serving.md",
            ),
        ),
        notes=(f"Counted for {best.request.deployment}, the best of those simulated.",),
    )


RULE = ServingRule(
    name="cache_capacity",
    question="Does it fit, and how many requests?",
    statement="Memory less weights, over the bytes of a request's keys and values.",
    source="vLLM documentation, optimization and tuning",
    advise=advise,
)
