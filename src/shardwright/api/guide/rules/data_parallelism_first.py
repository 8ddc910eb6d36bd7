"""Rule: data parallelism with a sharded optimizer first, model parallelism where it must be."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.break_even_plan_properties import splits_model
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, data_parallel_pins
from shardwright.api.guide.rules.build_break_even_questions import memory_question


def advise(facts: RequestFacts) -> Advice:
    """Training advice of data parallelism alone (TP, CP, PP 1), with a sharded optimizer."""
    sharded = tuple(stage for stage in facts.problem.runtime.zero_stages if stage)
    return Advice(
        words="Use data parallelism alone, with a sharded optimizer.",
        pins=data_parallel_pins(zero=sharded or (0,)),
        break_even=memory_question(
            facts,
            has=lambda grid: not splits_model(grid),
            change="The best plan is data parallelism alone",
        ),
    )


RULE = GuideRule(
    name="data_parallelism_first",
    question="Which parallelism first?",
    statement=(
        "Data parallelism with a sharded optimizer as long as model and activations fit; model"
        " parallelism only for what does not fit."
    ),
    source=f"{BRIDGE}, Parallel Mapping Strategies",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
