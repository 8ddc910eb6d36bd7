"""A small guide with every kind of verdict and break-even, written by hand."""

from __future__ import annotations

import json
from typing import Any

from shardwright.api.guide.make_guide import guide_document
from shardwright.files.canonical_json import to_text
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    BreakEven,
    BreakEvenSide,
    Comparison,
    Formula,
    Guide,
    GuidePlan,
    Outcome,
    Rule,
    Symbol,
    Verdict,
)

COMMAND = "shardwright plan m h100-sxm:64,memory=0.5x --seq-len 4096 --global-batch 256"


def plan(rate: float, command: str = COMMAND, strategy: str = "dp64") -> GuidePlan:
    return GuidePlan(command=command, strategy=strategy, step_s=1000 / rate, tokens_per_s=rate)


def verdict(outcome: Outcome, loss: float | None, rate: float, *others: Comparison) -> Verdict:
    sentence = "It holds here." if not loss else f"Here it loses {100 * loss:.1f} %."
    return Verdict(
        advice="Do so.",
        pins=(),
        outcome=outcome,
        followed=plan(rate),
        loss=loss,
        sentence=sentence,
        others=others,
    )


def break_even(axis: str, unit: str, *sides: tuple[int, bool, str]) -> BreakEven:
    return BreakEven(
        axis=axis,
        unit=unit,
        change=f"The best plan has 2 stages along the axis {axis}",
        sides=tuple(
            BreakEvenSide(value=value, has=has, plan=plan(50.0, command, "pp2"))
            for value, has, command in sides
        ),
        sentence=f"A change of {axis}.",
    )


def rule(name: str, found: Verdict | None, change: BreakEven | None, devices: int = 0) -> Rule:
    symbol = Symbol(name="n", meaning="devices", value=devices)
    formula = Formula(
        quantity="q",
        expression="n",
        symbols=(symbol,),
        substituted="64",
        value=64,
        unit="",
        source="",
    )
    return Rule(
        name=name,
        question=f"What of {name}?",
        statement="So it is.",
        source="",
        formulas=(formula,) if devices else (),
        verdict=found,
        break_even=change,
    )


def other(choice: str, loss: float | None, rate: float = 100.0) -> Comparison:
    return Comparison(choice=choice, plan=plan(rate, f"plan {choice}", f"with {choice}"), loss=loss)


RULES = (
    rule("fit", None, break_even("devices", "devices", (16, True, COMMAND)), devices=64),
    rule(
        "holds",
        verdict(Outcome.HOLDS, 0.0, 100.0, other("wide", 4.5)),
        break_even("global batch", "sequences a step", (2048, False, COMMAND)),
    ),
    rule(
        "costs",
        verdict(Outcome.LOSES, 0.25, 80.0, other("narrow", 0.1), other("none", None)),
        break_even(
            "memory of a device",
            "bytes",
            (40 * 2**30, False, COMMAND),
            (112 * 2**30, True, COMMAND.replace("0.5x", "1.4x")),
        ),
    ),
    rule(
        "condition",
        verdict(Outcome.LOSES, 0.5, 50.0, other("ring", 0.0, 75.0)),
        break_even("sequence length", "tokens", (2048, True, COMMAND), (4096, False, COMMAND)),
    ),
    rule("impossible", verdict(Outcome.DOES_NOT_FIT, None, 80.0), None),
    rule(
        "last",
        verdict(Outcome.LOSES, 0.05, 95.238),
        break_even("sequence length", "tokens", (2048, False, COMMAND), (16384, True, COMMAND)),
    ),
)


def guide_json(rules: tuple[Rule, ...] = RULES) -> Any:
    """JSON document of the guide with some rules."""
    made = Guide(
        kind="training",
        title="m on h100-sxm:64",
        command=COMMAND.replace("plan", "guide", 1),
        version="0",
        best=plan(100.0),
        hint="",
        rules=rules,
        searches=9,
    )
    return json.loads(to_text(guide_document(made)))
