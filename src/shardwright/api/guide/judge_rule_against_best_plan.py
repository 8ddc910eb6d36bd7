"""Judge a rule by searches: the fastest plan that follows it, against the best plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Final

from shardwright.api.guide.best_plan_record import BestPlan, searched_plan, with_pins
from shardwright.api.guide.find_value_where_best_plan_changes import find_break_even
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Comparison,
    GuidePlan,
    Outcome,
    Rule,
    Verdict,
)
from shardwright.search.grid.fate_of_grid import axis_values
from shardwright.search.search_request import Choices, Request
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import format_percent

EQUAL: Final = 0.0005
"""Largest difference of two steps that are called equally fast: it prints as 0.0 %."""


def judge_rule(rule: GuideRule, facts: RequestFacts, *, is_late: Callable[[], bool]) -> Rule:
    """The rule with its formulas, verdict and break-even; no break-even if `is_late()`."""
    advice = rule.advise(facts)
    asked = advice.break_even if not is_late() else None
    return Rule(
        name=rule.name,
        question=rule.question,
        statement=rule.statement,
        source=rule.source,
        formulas=advice.formulas,
        verdict=_verdict(advice, facts) if advice.words else None,
        break_even=(
            None
            if asked is None
            else find_break_even(asked, contents=searched_plan, is_late=is_late)
        ),
        notes=advice.notes,
    )


def _verdict(advice: Advice, facts: RequestFacts) -> Verdict:
    """The verdict of an advice: the plan that follows it, and the other choices."""
    request = advice.request or facts.request
    best = facts.search(request)
    own = replace(request, max_devices=advice.max_devices) if advice.max_devices else request
    followed, loss = _compared(own, advice.pins, best, facts.search)
    outcome = outcome_of(followed, loss)
    return Verdict(
        advice=advice.words,
        pins=pin_words(advice.pins),
        outcome=outcome,
        followed=_contents(followed, own, advice.pins),
        loss=loss,
        sentence=verdict_sentence(outcome, loss, followed),
        others=tuple(
            Comparison(choice=choice, plan=_contents(plan, request, pins), loss=other_loss)
            for choice, pins in advice.others
            for plan, other_loss in [_compared(request, pins, best, facts.search)]
        ),
    )


def _compared(
    request: Request, pins: Choices, best: BestPlan, search: Callable[[Request], BestPlan]
) -> tuple[BestPlan | None, float | None]:
    """(fastest plan with pins, step / `best`'s - 1); plan None: pins clash; loss None: none fits.

    The plan is None where the pins contradict the request's; the loss where there is no plan.
    """
    pinned = with_pins(request, pins)
    if pinned is None:
        return None, None
    plan = (
        replace(best, request=pinned)
        if request == best.request and obeys(best.grid, pins)
        else search(pinned)
    )
    loss = plan.step_s / best.step_s - 1
    return plan, loss if isfinite(loss) else None


def obeys(grid: Grid | None, pins: Choices) -> bool:
    """True if a plan is known to have the pinned values, so that no other plan with them is faster.

    False also where the plan does not say, as of options that it leaves to the framework.
    """
    if grid is None:
        return False
    own = {**axis_values(grid), "dp": grid.dp, **dict(grid.options)}
    return all(axis in own and str(own[axis]) in values for axis, values in pins)


def _contents(plan: BestPlan | None, request: Request, pins: Choices) -> GuidePlan:
    """Contents of the guide for a searched plan; plan None = the pins contradict the request's."""
    if plan is not None:
        return searched_plan(plan)
    own = ", ".join(pin_words(request.pins))
    return GuidePlan(command="", why=f"{', '.join(pin_words(pins))} contradicts --pin {own}")


def outcome_of(plan: BestPlan | None, loss: float | None) -> Outcome:
    """Outcome of following a rule: it holds, loses, gains, does not fit or is not possible."""
    if plan is None or (loss is None and plan.impossible):
        return Outcome.NOT_POSSIBLE
    if loss is None:
        return Outcome.DOES_NOT_FIT
    if abs(loss) < EQUAL:
        return Outcome.HOLDS
    return Outcome.LOSES if loss > 0 else Outcome.GAINS


def verdict_sentence(outcome: Outcome, loss: float | None, plan: BestPlan | None) -> str:
    """The outcome in a sentence, with the loss, and its least value if the search was stopped."""
    if outcome is Outcome.HOLDS:
        return "It holds here."
    if loss is None:
        if outcome is Outcome.DOES_NOT_FIT:
            return "Here no plan that follows it fits in memory."
        why = "" if plan is None else plan.why
        return f"It cannot be followed here: {why or 'it contradicts your own pins'}."
    if outcome is Outcome.LOSES and plan is not None and plan.gap > EQUAL:
        least = (1 + loss) * (1 - plan.gap) - 1
        return (
            f"Here it loses {format_percent(loss)} with the best plan found, and"
            f" {'at least ' + format_percent(least) if least > EQUAL else 'maybe nothing'}."
        )
    size = format_percent(abs(loss))
    if outcome is Outcome.LOSES:
        return f"Here it loses {size}."
    return f"Here it gains {size} over the best plan of the standard space."


def pin_words(pins: Choices) -> tuple[str, ...]:
    """Pins as the words of ``--pin``."""
    return tuple(f"{axis}={','.join(values)}" for axis, values in pins)
