"""Rule: the batch of decode from which a device is bound by computation."""

from __future__ import annotations

from math import sqrt
from typing import Final

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import powers_of_two
from shardwright.api.guide.serving_request_facts_and_simulations import (
    ServingFacts,
    SimulatedDeployment,
)
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.units import format_seconds

BOOK: Final = "Austin et al., How to Scale Your Model, chapter on inference (commit 0819a7d)"
LOADS: Final = (1, 4, 16, 64, 256, 1024)


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving formula of the compute-bound decode batch; notes simulated tokens/s at some loads."""
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
    return ServingAdvice(
        formulas=(batch,), notes=tuple(notes), break_even=_load_question(facts, deployment)
    )


def _load_question(facts: ServingFacts, deployment: str) -> BreakEvenQuestion[SimulatedDeployment]:
    """Question from how many requests on twice as many are nearer to computation's bound.

    Bound by reading weights, they give twice the tokens a second; bound by computation, as many.
    The factor between, in proportion to both, is the square root of two.
    """

    def is_near_computation(simulation: SimulatedDeployment) -> bool:
        """True if twice the requests give less than sqrt(2) times the tokens a second."""
        load = simulation.request.concurrency
        doubled = facts.simulated(deployment, concurrency=2 * load)
        return doubled.tokens_per_s < sqrt(2) * simulation.tokens_per_s

    return BreakEvenQuestion(
        axis="requests in flight",
        values=powers_of_two(LOADS[0], LOADS[-1] // 2),
        plan_at=lambda load: facts.simulated(deployment, concurrency=load),
        has=is_near_computation,
        change=f"Twice the requests give less than {sqrt(2):.2f} times the tokens a second",
    )


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
