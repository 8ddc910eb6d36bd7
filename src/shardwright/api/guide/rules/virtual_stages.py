"""Rule: how many virtual stages a device has in an interleaved pipeline."""

from __future__ import annotations

from shardwright.api.guide.best_plan_record import with_pins
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, pin
from shardwright.api.guide.rules.build_break_even_questions import batch_question
from shardwright.api.guide.rules.pipeline_or_not_by_bubble import pipelined_plan


def advise(facts: RequestFacts) -> Advice:
    """Training advice of 1 virtual stage from 8 microbatches a stage on, else one for a layer."""
    plan = pipelined_plan(facts)
    if plan is None or plan.grid is None:
        return Advice(notes=("No plan with a pipeline fits.",))
    grid = plan.grid
    microbatches = facts.microbatches(grid)
    layers = -(-facts.counts.layers // grid.pp)
    counts = sorted({1, 2, 4, layers} & set(range(1, layers + 1)))
    many = microbatches >= 8 * grid.pp
    advised = counts[0] if many else counts[-1]
    return Advice(
        words=(
            f"With PP {grid.pp}, where the best plan has {microbatches:,} microbatches:"
            f" {advised} virtual stage{'' if advised == 1 else 's'} a device."
        ),
        pins=(pin("vpp", advised),),
        others=tuple(
            (f"{count} virtual", (pin("vpp", count),)) for count in counts if count != advised
        ),
        request=with_pins(facts.request, (pin("pp", grid.pp),)),
        break_even=batch_question(
            facts,
            has=lambda grid: grid.vpp == 1,
            change=f"The best plan with PP {grid.pp} has one virtual stage a device",
            pins=(pin("pp", grid.pp),),
        ),
    )


RULE = GuideRule(
    name="virtual_stages",
    question="How many virtual stages?",
    statement=(
        "Fewer where there are many microbatches: then the additional messages cost more than the"
        " bubble that they remove."
    ),
    source=f"{BRIDGE}, pipeline parallelism",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
