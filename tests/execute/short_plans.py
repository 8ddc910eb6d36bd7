"""Plans as `make test` runs them: with fewer layers and microbatches. A proof runs them as they
are."""

from __future__ import annotations

from shardwright.execute.proof.fewer_layers_and_microbatches import (
    ModelJobPlan,
    num_operators,
    shorter_step,
)
from tests.strategy.zoo_plans import zoo_plan
from tests.tiers import in_proof

FEW_OPERATORS = 120
"""Of a step, one way; a plan that cannot have as few with two microbatches has more."""


def short(question: ModelJobPlan) -> ModelJobPlan:
    """Fewer layers, then half the microbatches, as long as lanes that have two or more keep two."""
    while not in_proof() and (count := num_operators(question)) > FEW_OPERATORS:
        shorter = shorter_step(*question, most=count - 1)
        lanes = zip(question[2].lanes, shorter[2].lanes, strict=True)
        if shorter == question or any(
            one.microbatches < min(lane.microbatches, 2) for lane, one in lanes
        ):
            break
        question = shorter
    return question


def short_zoo_plan(name: str) -> ModelJobPlan:
    """A plan of the zoo, and its problem."""
    zoo = zoo_plan(name)
    return short((zoo.model, zoo.job, zoo.plan))
