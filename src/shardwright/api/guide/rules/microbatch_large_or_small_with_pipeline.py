"""Rule: the microbatch is as large as fits, unless a pipeline needs many microbatches."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.best_plan_record import with_pins
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import (
    ML_ENGINEERING,
    PLAYBOOK,
    pin,
)
from shardwright.api.guide.rules.build_break_even_questions import batch_question

SIZES: Final = (1, 2, 4, 8)


def advise(facts: RequestFacts) -> Advice:
    """Training advice of the largest microbatch of 1, 2, 4, 8 that fits; with PP the smallest."""
    requests = {size: with_pins(facts.request, (pin("mbs", size),)) for size in SIZES}
    fitting = [
        size
        for size, request in requests.items()
        if request is not None and facts.search(request).grid is not None
    ]
    if not fitting:
        return Advice(notes=("No microbatch of 1, 2, 4 or 8 sequences fits.",))
    pipelined = facts.grid.pp > 1
    advised = fitting[0] if pipelined else fitting[-1]
    return Advice(
        words=(
            f"With a pipeline: {advised}, for many microbatches."
            if pipelined
            else f"Without a pipeline: {advised}, the largest that fits."
        ),
        pins=(pin("mbs", advised),),
        others=tuple(
            (f"{size} a microbatch", (pin("mbs", size),)) for size in fitting if size != advised
        ),
        break_even=batch_question(
            facts,
            has=lambda grid: grid.microbatch > 1,
            change="The best plan has several sequences in a microbatch",
        ),
    )


RULE = GuideRule(
    name="microbatch_size",
    question="How large a microbatch?",
    statement=(
        "Without a pipeline as large as fits; with one, a large microbatch leaves fewer of them and"
        " so more bubble."
    ),
    source=f"{ML_ENGINEERING}; benchmark of {PLAYBOOK}",
    advise=advise,
)
