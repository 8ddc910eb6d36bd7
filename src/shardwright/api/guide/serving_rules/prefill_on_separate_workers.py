"""Rule: prefill on workers of its own."""

from __future__ import annotations

from shardwright.api.guide.serving_request_facts_and_simulations import (
    ServingFacts,
    SimulatedDeployment,
)
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.api.guide.serving_rules.break_even_load_and_prompt_length import prompt_question
from shardwright.units import format_seconds

LONG_PROMPT = 4096
"""Prompt tokens from which people disaggregate, at least four times the answer's."""


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving advice: half the devices prefill if prompts have >= 4,096 tokens and >= 4 answers."""
    width = max(facts.smallest_width, 1)
    if facts.devices < 2 * width:
        return ServingAdvice(notes=("There are too few devices for two workers.",))
    workers = facts.devices // width
    prefill = max(workers // 2, 1)
    apart = f"prefill {prefill}x(tp{width}) decode {workers - prefill}x(tp{width})"
    together = f"agg {workers}x(tp{width})"
    each = f"{workers} workers of TP {width}"
    long = facts.prompt >= max(LONG_PROMPT, 4 * facts.answer)
    return ServingAdvice(
        words="Prefill apart from decode." if long else "Prefill and decode on the same workers.",
        deployment=apart if long else together,
        others=((f"together on {each}", together) if long else (f"apart on {each}", apart),),
        break_even=prompt_question(
            facts,
            apart,
            together,
            change=(
                "The 90th percentile of the time per output token is lower with separate prefill"
                " workers"
            ),
        ),
        notes=tuple(
            _latency_note(name, facts.simulated(text))
            for name, text in (("Apart", apart), ("Together", together))
        ),
    )


def _latency_note(name: str, simulated: SimulatedDeployment) -> str:
    """Sentence with the 90th percentiles of the times to the first and to each further token."""
    if simulated.answer is None:
        return f"{name}: not possible, {simulated.why}."
    metrics = simulated.answer.metrics
    return (
        f"{name}: 90 % of the first tokens within {format_seconds(metrics.ttft.p90, digits=3)} and"
        f" further tokens within {format_seconds(metrics.tpot.p90, digits=3)}."
    )


RULE = ServingRule(
    name="prefill_apart",
    question="Prefill apart from decode?",
    statement=(
        "Pays with strict latency targets, long prompts, fast links and load; not for small"
        " models, short prompts or low traffic. It lowers tail latency, not cost."
    ),
    source="vllm issues 38525, 23144 and 41834",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
