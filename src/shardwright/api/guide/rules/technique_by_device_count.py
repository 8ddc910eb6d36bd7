"""Rule: from which number of devices data parallelism alone is inefficient."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.break_even_plan_properties import splits_model
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import (
    PLAYBOOK,
    data_parallel_pins,
    pin,
    powers_of_two,
)
from shardwright.api.guide.rules.build_break_even_questions import device_question
from shardwright.search.search_request import Choices

COMBINE: Final = 512
LARGE: Final = 1024
"""Numbers of devices from which the playbook combines techniques, and names all three."""


def advise(facts: RequestFacts) -> Advice:
    """Training advice of ZeRO alone below 512 devices, TP from 512, TP with PP from 1,024."""
    most = min(facts.island, 8)
    stages = facts.problem.runtime.zero_stages
    last = max(stages)
    alone = data_parallel_pins(zero=(last,))
    tensor: Choices = (pin("tp", *powers_of_two(2, most)),)
    pipeline: Choices = (pin("tp", 1), pin("pp", *powers_of_two(2, 16)))
    if facts.devices >= LARGE:
        words = f"TP {most} with pipelines and an optimizer that is sharded."
        pins: Choices = (
            pin("tp", most),
            pin("pp", *powers_of_two(2, 32)),
            pin("zero", *([stage for stage in stages if 0 < stage < last] or [last])),
        )
        others: tuple[tuple[str, Choices], ...] = (
            ("ZeRO alone", alone),
            ("TP without its limit", tensor),
            ("PP alone", pipeline),
        )
    elif facts.devices >= COMBINE:
        words, pins = "Combine data parallelism with TP.", tensor
        others = (("PP in place of TP", pipeline), ("ZeRO alone", alone))
    else:
        words, pins = f"ZeRO-{last} alone.", alone
        others = (("TP", tensor), ("PP", pipeline))
    return Advice(words=words, pins=pins, others=others, break_even=_device_question(facts))


def _device_question(facts: RequestFacts) -> BreakEvenQuestion[BestPlan] | None:
    """Question from which number of devices the best plan splits the model; None for one number."""
    node = facts.problem.cluster.node.num_devices
    least = max(node, facts.unsharded_bytes / facts.usable_bytes)
    values = tuple(
        count
        for count in powers_of_two(node, facts.devices)
        if count % node == 0 and count >= least
    )
    return device_question(
        facts,
        values=values,
        has=splits_model,
        change="The best plan splits the model (TP, CP or PP)",
    )


RULE = GuideRule(
    name="technique_by_device_count",
    question="From which size on is data parallelism alone inefficient?",
    statement=(
        "At 512 devices and more combine ZeRO with TP or PP; at 1,024 TP 8, ZeRO-2 and PP; one"
        " technique on few devices."
    ),
    source=f"{PLAYBOOK}, Finding the Best Training Configuration",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
