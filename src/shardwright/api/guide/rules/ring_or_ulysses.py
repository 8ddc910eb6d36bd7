"""Rule: context parallelism by ring or by exchange of heads (Ulysses)."""

from __future__ import annotations

from math import gcd

from shardwright.api.guide.best_plan_record import with_pins
from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import ML_ENGINEERING, pin
from shardwright.api.guide.rules.build_break_even_questions import length_question


def advise(facts: RequestFacts) -> Advice:
    """Training advice of Ulysses over gcd(CP, key heads) at the best plan's CP or 2, or a ring."""
    degree = facts.grid.cp if facts.grid.cp > 1 else 2
    heads = facts.counts.kv_heads
    ulysses = gcd(degree, heads)
    length = symbol("S", "tokens of a sequence", facts.request.seq_len, "tokens")
    hidden = symbol("h", "width of the residual stream", facts.problem.model.hidden)
    parts = symbol("P", "context-parallel degree", degree)
    return Advice(
        words=(
            f"With CP {degree}: Ulysses over {ulysses}, as there are {heads} key heads."
            if ulysses > 1
            else f"With CP {degree}: a ring, as {heads} key heads cannot be exchanged."
        ),
        pins=(pin("ulysses", ulysses),),
        others=(("ring", (pin("ulysses", 1),)),) if ulysses > 1 else (),
        request=with_pins(facts.request, (pin("cp", degree),)),
        break_even=length_question(
            facts,
            has=lambda grid: grid.ulysses == 1,
            change=f"The best plan with CP {degree} has a ring alone",
            pins=(pin("cp", degree),),
        ),
        formulas=(
            formula(
                "elements that a device sends in a layer with Ulysses",
                "4 * S * h / P",
                length,
                hidden,
                parts,
                unit="elements",
                source=f"{ML_ENGINEERING}, sequence parallelism",
            ),
            formula(
                "elements with Megatron's sequence parallelism",
                "4 * S * h",
                length,
                hidden,
                unit="elements",
                source=f"{ML_ENGINEERING}, sequence parallelism",
            ),
        ),
    )


RULE = GuideRule(
    name="ring_or_ulysses",
    question="Ring attention or Ulysses?",
    statement=(
        "Ulysses sends a part of what sequence parallelism sends, falling with its degree, which is"
        " at most the number of key heads; a ring has no such limit."
    ),
    source=f"{ML_ENGINEERING}, sequence parallelism",
    advise=advise,
    applies=lambda facts: facts.devices > 1 and facts.counts.kv_heads > 0,
)
