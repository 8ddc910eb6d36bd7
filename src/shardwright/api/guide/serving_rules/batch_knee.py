"""Rule: the batch of decode from which a device is bound by computation."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.serving_facts import ServingFacts
from shardwright.api.guide.serving_rule import ServingAdvice, ServingRule
from shardwright.units import format_seconds

BOOK: Final = "Austin et al., How to Scale Your Model, chapter on inference (commit 0819a7d)"
LOADS: Final = (1, 4, 16, 64, 256, 1024)


def advise(facts: ServingFacts) -> ServingAdvice:
    """Formula of the batch that is bound by computation; simulated tokens/s at several loads."""
    symbols = (
        symbol("C", "peak FLOP/s of a device in the format of the products", facts.peak_flops),
        symbol("w", "bytes of a weight", facts.weight_bytes),
        symbol("W", "bytes/s of its memory", facts.memory_bytes_per_s),
    )
    sparse = (
        symbol("E", "experts of a layer", facts.experts),
        symbol("k", "experts that a token uses", facts.topk),
    )
    batch = formula(
        "requests of a device's decode step that keep it bound by computation",
        "C * w / (2 * W)" if not facts.experts else "C * w / (2 * W) * E / k",
        *symbols,
        *(sparse if facts.experts else ()),
        unit="requests",
        source=BOOK,
    )
    deployment = facts.best.request.deployment
    notes: list[str] = []
    for load in LOADS:
        simulated = facts.simulated(deployment, concurrency=load)
        if simulated.answer is not None:
            metrics = simulated.answer.metrics
            notes.append(
                f"Simulated with {load:,} requests in flight on {deployment}:"
                f" {metrics.tokens_per_second:,.0f} tokens/s,"
                f" {format_seconds(metrics.tpot.mean, digits=3)} a token."
            )
    return ServingAdvice(formulas=(batch,), notes=tuple(notes))


RULE = ServingRule(
    name="batch_knee",
    question="How many requests at once?",
    statement=(
        "Throughput grows with the batch until the multiplications take as long as reading the"
        " weights; beyond that only latency grows."
    ),
    source=BOOK,
    advise=advise,
)
