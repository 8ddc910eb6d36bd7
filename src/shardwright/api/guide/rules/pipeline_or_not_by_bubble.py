"""Rule: the pipeline bubble, from stages, virtual stages and microbatches."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.best_plan_record import BestPlan, with_pins
from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import PLAYBOOK, pin, powers_of_two
from shardwright.api.guide.rules.build_break_even_questions import batch_question
from shardwright.units import format_percent

LARGEST_BUBBLE: Final = 0.1
"""Bubble over the work above which a pipeline is called expensive."""


def pipelined_plan(facts: RequestFacts) -> BestPlan | None:
    """The best plan if it has a pipeline, else the best plan with one; None if none fits."""
    if facts.grid.pp > 1:
        return facts.best
    stages = powers_of_two(2, min(facts.devices, facts.counts.layers))
    request = with_pins(facts.request, (pin("pp", *stages),)) if stages else None
    plan = None if request is None else facts.search(request)
    return None if plan is None or plan.grid is None else plan


def advise(facts: RequestFacts) -> Advice:
    """Training advice of PP unless the best PP plan's bubble (p - 1) / (v m) is above 0.1."""
    plan = pipelined_plan(facts)
    if plan is None or plan.grid is None or plan.prediction is None:
        return Advice(notes=("No plan with a pipeline fits.",))
    grid = plan.grid
    symbols = (
        symbol("p", "pipeline stages", grid.pp),
        symbol("v", "virtual stages of a device", grid.vpp),
        symbol("m", "microbatches of a step", facts.microbatches(grid)),
    )
    bubble = dict(plan.prediction.breakdown_s).get("bubble", 0.0) / plan.prediction.step_time_s
    over_work = formula(
        "bubble over the time of the work",
        "(p - 1) / (v * m)",
        *symbols,
        unit="share",
        source=f"{PLAYBOOK}, Pipeline Parallelism",
    )
    few = over_work.value > LARGEST_BUBBLE
    return Advice(
        words="No pipeline: there are too few microbatches." if few else "A pipeline is cheap.",
        pins=(pin("pp", 1),) if few else (pin("pp", *powers_of_two(2, facts.counts.layers)),),
        formulas=(
            over_work,
            formula(
                "bubble over the step",
                "(p - 1) / (v * m + p - 1)",
                *symbols,
                unit="share",
                source="the same bubble, over work and bubble together",
            ),
        ),
        notes=(
            f"In the simulation {format_percent(bubble)} of that plan's step are waiting times of"
            " the pipeline, which include unequal stages and messages.",
        ),
        break_even=batch_question(
            facts, has=lambda grid: grid.pp > 1, change="The best plan has a pipeline"
        ),
    )


RULE = GuideRule(
    name="pipeline_bubble",
    question="What does a pipeline cost?",
    statement=(
        "The bubble is (p - 1)/m, and (p - 1)/(v m) with v virtual stages, which send v times as"
        " much; the microbatches should be many more than the stages."
    ),
    source=f"{PLAYBOOK}, Pipeline Parallelism",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
