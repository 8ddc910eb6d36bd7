"""Content of a guide's picture of rule losses: a bar for each judged rule, from its JSON."""

from __future__ import annotations

from math import isclose
from typing import Any, Final

from shardwright.lazily_compiled_dataclass import dataclass

_SAME: Final = 1e-6
"""Relative difference of two rates of the same plan, as rounded in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLoss:
    """A judged rule.

    Args:
        pointer: JSON pointer of the rule.
        question: what the rule answers.
        outcome: value of `Outcome`.
        loss: time of the rule's advice above the best plan's, as a fraction; None without a plan.
        others: losses of the other choices that have a plan.
    """

    pointer: str
    question: str
    outcome: str
    loss: float | None
    others: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLosses:
    """The judged rules, largest loss first and those without a plan last; sentence templates."""

    rows: tuple[RuleLoss, ...]
    reading: str
    next_change: str


def rule_losses_content(guide_json: Any) -> RuleLosses | None:
    """Content of the picture of rule losses; None if no rule has a verdict."""
    rows = [
        RuleLoss(
            pointer=f"/rules/{place}",
            question=rule["question"],
            outcome=rule["verdict"]["outcome"],
            loss=rule["verdict"]["loss"],
            others=tuple(
                other["loss"] for other in rule["verdict"]["others"] if other["loss"] is not None
            ),
        )
        for place, rule in enumerate(guide_json["rules"])
        if rule["verdict"] is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.loss is None, -(row.loss or 0.0)))
    first = rows[0]
    reading = (
        "{/rules:rules_that_hold} of the {/rules:judged_rules} rules that could be judged hold here"
    )
    if first.outcome != "loses":
        reading, next_change = f"{reading}, and none costs time.", ""
    else:
        reading += (
            f"; the costliest is the answer to “{{{first.pointer}/question}}”."
            f" {{{first.pointer}/verdict/sentence}}"
        )
        next_change = _next_change(guide_json, first)
    return RuleLosses(rows=tuple(rows), reading=reading, next_change=next_change)


def _next_change(guide_json: Any, row: RuleLoss) -> str:
    """Template: the fastest choice in place of a rule's advice, and its rate; "" without one."""
    at = f"{row.pointer}/verdict"
    verdict = guide_json["rules"][int(row.pointer.rpartition("/")[2])]["verdict"]
    choices = [
        (other["loss"], f"“{{{at}/others/{number}/choice}}”", f"{at}/others/{number}/plan")
        for number, other in enumerate(verdict["others"])
        if other["loss"] is not None
    ]
    rate, best = verdict["followed"]["tokens_per_s"], guide_json["best"]["tokens_per_s"]
    if best and isclose(rate * (1 + verdict["loss"]), best, rel_tol=_SAME):
        # The verdict compares with the best plan of the request, and of no condition.
        choices.append((0.0, "the best plan", "/best"))
    loss, words, plan = min(choices, default=(verdict["loss"], "", ""), key=lambda one: one[0])
    if loss >= verdict["loss"]:
        return ""
    return (
        f"In its place take {words}: {{{plan}/strategy:command}} has {{{plan}/tokens_per_s:rate}}"
        f" tokens a second instead of {{{at}/followed/tokens_per_s:rate}}."
        f" {{{plan}/command:command}} repeats it."
    )
