"""The design guide as data: rules with formulas, verdicts by searched plans, and break-evens."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

GUIDE_SCHEMA: Final = "shardwright.guide"
GUIDE_VERSION: Final = 1


class Outcome(StrEnum):
    """Result of the searches about following a rule for the user's request.

    Attributes:
        HOLDS: a plan that follows the rule is as fast as the best plan.
        LOSES: the fastest plan that follows the rule is slower than the best plan.
        GAINS: it is faster: the rule names plans outside the standard search space.
        DOES_NOT_FIT: no plan that follows the rule fits in memory.
        NOT_POSSIBLE: the rule contradicts the request's own pins or the training framework.
    """

    HOLDS = "holds"
    LOSES = "loses"
    GAINS = "gains"
    DOES_NOT_FIT = "does not fit"
    NOT_POSSIBLE = "not possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A symbol of a formula: its meaning, the user's value, and the unit."""

    name: str
    meaning: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A formula with the user's numbers.

    Args:
        quantity: what the formula computes.
        expression: formula in the symbols, in Python's notation of arithmetic.
        symbols: each symbol of the expression.
        substituted: expression with the user's numbers in place of the symbols.
        value: value of the expression.
        unit: unit of the value; empty for a count or a share.
        source: where the formula is from.
    """

    quantity: str
    expression: str
    symbols: tuple[Symbol, ...]
    substituted: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidePlan:
    """The fastest plan of a searched request, or the reason why there is none.

    Args:
        command: command that repeats the search, or the simulation of a deployment.
        strategy: notation; empty where there is no plan.
        step_s, tokens_per_s: None where there is no plan.
        memory_share: memory of the fullest device over its capacity.
        gap: share of the step by which a plan that was not searched may be faster; 0 where the
            search ended.
        simulated: True if only this one was simulated and none was searched.
        why: reason why there is no plan; empty where there is one.
    """

    command: str
    strategy: str = ""
    step_s: float | None = None
    tokens_per_s: float | None = None
    memory_share: float | None = None
    gap: float = 0.0
    simulated: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Another choice than the rule's: the best plan with it, and its loss against the best plan."""

    choice: str
    plan: GuidePlan
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Cost of following a rule for the user's request.

    Args:
        advice: what the rule advises for this request.
        pins: ``axis=value`` words that express the advice.
        outcome: what the searches say.
        followed: the fastest plan that follows the advice.
        loss: its step over the best plan's step, less 1; None where it has no plan.
        sentence: outcome in a sentence, such as ``Here it loses 3.2 %.``
        others: other choices, each searched.
    """

    advice: str
    pins: tuple[str, ...]
    outcome: Outcome
    followed: GuidePlan
    loss: float | None
    sentence: str
    others: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenSide:
    """A value of a break-even's axis: the best plan there, and whether it has the property."""

    value: int
    has: bool
    plan: GuidePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where the best plan changes along an axis, with the searched plans on either side.

    Args:
        axis: name of the axis, such as ``sequence length`` or ``network of a device``.
        unit: unit of the sides' values.
        change: property of the best plan that changes along the axis.
        sides: the neighbouring searched values between which it changes, ascending. Where it does
            not change there is one: the first value of the axis if both ends have the property, the
            last value if neither has it.
        sentence: the break-even in a sentence.
    """

    axis: str
    unit: str
    change: str
    sides: tuple[BreakEvenSide, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of thumb, with the user's numbers and what searches say about it.

    Args:
        name: identifier.
        question: what people ask.
        statement: the rule as it is published.
        source: where it is published.
        formulas: formulas behind it, with the user's numbers.
        verdict: None for a rule without advice about the plan, such as a checkpoint interval.
        break_even: None where the rule has none, or time ran out.
        notes: further results, one sentence each.
    """

    name: str
    question: str
    statement: str
    source: str
    formulas: tuple[Formula, ...]
    verdict: Verdict | None
    break_even: BreakEven | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A design guide for one request.

    Args:
        kind: training or serving.
        title: one line.
        command: command that makes the guide again.
        version: version of this package.
        best: the plan of the same request, which `plan` finds too.
        hint: what would fit, where nothing fits.
        rules: in the order in which people ask.
        searches: number of searches, or of simulated deployments.
        skipped: names of rules that the time limit, or the end of all searches, left out.
    """

    kind: str
    title: str
    command: str
    version: str
    best: GuidePlan
    hint: str
    rules: tuple[Rule, ...]
    searches: int
    skipped: tuple[str, ...] = ()
