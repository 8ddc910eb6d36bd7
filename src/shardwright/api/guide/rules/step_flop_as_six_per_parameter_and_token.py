"""Rule: a step needs six operations for each parameter and token."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts

KAPLAN = "Kaplan et al. 2020, Scaling Laws, table 1"


def advise(facts: RequestFacts) -> Advice:
    """Training formulas: FLOP of a step, its seconds at peak, the best plan's share of the peak."""
    prediction = facts.best.prediction
    work = (
        symbol("A", "parameters that a token uses", facts.active_parameters),
        symbol("B", "tokens of a step", facts.tokens),
    )
    rates = (symbol("n", "devices", facts.devices), symbol("C", "peak FLOP/s", facts.peak_flops))
    formulas = [
        formula("operations of a step", "6 * A * B", *work, unit="FLOP", source=KAPLAN),
        formula(
            "seconds of a step at peak",
            "6 * A * B / (n * C)",
            *work,
            *rates,
            unit="seconds",
            source=KAPLAN,
        ),
    ]
    if prediction is not None:
        formulas.append(
            formula(
                "share of the peak that the best plan reaches",
                "6 * A * B / (n * C * s)",
                *work,
                *rates,
                symbol("s", "seconds of its step", prediction.step_time_s),
                unit="share",
                source="6 A B leaves attention scores out; `plan` prints MFU with them",
            )
        )
    return Advice(formulas=tuple(formulas))


RULE = GuideRule(
    name="training_compute",
    question="How long must a step take?",
    statement="Six operations for each parameter and token: two forward and four backward.",
    source=KAPLAN,
    advise=advise,
)
