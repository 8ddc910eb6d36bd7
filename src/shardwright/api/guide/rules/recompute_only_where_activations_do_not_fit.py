"""Rule: recompute activations in the backward pass only where they do not fit."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.break_even_plan_properties import recomputes
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, ML_ENGINEERING, pin
from shardwright.api.guide.rules.build_break_even_questions import memory_question

KORTHIKANTI = "Korthikanti et al. 2022, Reducing Activation Recomputation, table 2"


def advise(facts: RequestFacts) -> Advice:
    """Training advice of no recomputation; all layers, or attention alone, as other choices."""
    grid = facts.grid
    sizes = (
        symbol("s", "tokens of a device's part of a sequence", facts.request.seq_len // grid.cp),
        symbol("b", "sequences of a microbatch", grid.microbatch),
        symbol("h", "width of the residual stream", facts.problem.model.hidden),
        symbol("t", "tensor-parallel degree, with sequence parallelism", grid.tp),
    )
    return Advice(
        words="Recompute nothing.",
        pins=(pin("recompute", "none"),),
        others=(
            ("full recomputation", (pin("recompute", "full"),)),
            ("attention alone", (pin("recompute", "selective"),)),
        ),
        break_even=memory_question(
            facts,
            has=lambda grid: not recomputes(grid),
            change="The best plan recomputes nothing",
        ),
        formulas=(
            formula(
                "more computation with full recomputation: a second forward pass",
                "F / (F + 2 * F)",
                symbol("F", "work of the forward pass; backward is twice as much", 1),
                unit="share",
                source=ML_ENGINEERING,
            ),
            formula(
                "activations of a layer and microbatch without recomputation, fused attention",
                "34 * s * b * h / t",
                *sizes,
                unit="bytes",
                source=KORTHIKANTI,
            ),
            formula(
                "the same with full recomputation: the input of the layer",
                "2 * s * b * h / t",
                *sizes,
                unit="bytes",
                source=KORTHIKANTI,
            ),
        ),
    )


RULE = GuideRule(
    name="recompute_or_not",
    question="Full, selective or no recomputation?",
    statement=(
        "Full recomputation costs about 30 % more computation; recomputing attention alone is"
        " nearly free, and fused attention already does it."
    ),
    source=f"{ML_ENGINEERING}; {BRIDGE}",
    advise=advise,
)
