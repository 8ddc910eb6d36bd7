"""Break-even questions between two deployments, by the better one in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import powers_of_two
from shardwright.api.guide.serving_request_facts_and_simulations import (
    ServingFacts,
    SimulatedDeployment,
)

LOADS: Final = powers_of_two(1, 1024)
PROMPTS: Final = powers_of_two(128, 65536)


def load_question(
    facts: ServingFacts, deployment: str, other: str, *, change: str
) -> BreakEvenQuestion[SimulatedDeployment] | None:
    """Question: from which load on has `deployment` more tokens a second than `other`?

    None where both deployments are the same.
    """
    return _question(
        "requests in flight",
        LOADS,
        deployment,
        other,
        score=lambda simulation: simulation.tokens_per_s,
        simulated=lambda text, load: facts.simulated(text, concurrency=load),
        change=change,
    )


def prompt_question(
    facts: ServingFacts, deployment: str, other: str, *, change: str
) -> BreakEvenQuestion[SimulatedDeployment] | None:
    """Question: from which prompt length on is `deployment` faster after the first token (p90)?

    None where both deployments are the same.
    """
    return _question(
        "prompt",
        PROMPTS,
        deployment,
        other,
        score=_further_token_rate,
        simulated=lambda text, prompt: facts.simulated(text, prompt=prompt),
        change=change,
    )


def _further_token_rate(simulation: SimulatedDeployment) -> float:
    """Further tokens a second of a request, at the 90th percentile; 0 without an answer."""
    return 0.0 if simulation.answer is None else 1 / simulation.answer.metrics.tpot.p90


def _question(
    axis: str,
    values: tuple[int, ...],
    deployment: str,
    other: str,
    *,
    score: Callable[[SimulatedDeployment], float],
    simulated: Callable[[str, int], SimulatedDeployment],
    change: str,
) -> BreakEvenQuestion[SimulatedDeployment] | None:
    """Question at which values one deployment has a higher score than the other."""
    if deployment == other:
        return None

    def better_at(value: int) -> SimulatedDeployment:
        """Simulate both deployments at `value` of the axis; the higher score; `other` if equal."""
        return max((simulated(text, value) for text in (other, deployment)), key=score)

    return BreakEvenQuestion(
        axis=axis,
        values=values,
        plan_at=better_at,
        has=lambda simulation: simulation.request.deployment == deployment,
        change=change,
    )
