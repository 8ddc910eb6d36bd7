"""A rule of the guide as code: what it says, when it applies, and the pins of its advice."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.guide.applies_to_every_request import applies_to_every_request
from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Formula
from shardwright.search.search_request import Choices, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice of a rule for one request, with the pins that express it.

    Args:
        words: the advice; empty for a rule without advice about the plan.
        pins: (axis, values) pairs that express the advice.
        others: (choice in words, pins) of other choices.
        formulas: formulas with the request's numbers.
        notes: further results.
        break_even: None if the rule asks for none.
        request: the request for which the advice is judged; None = the user's own.
        max_devices: devices that the advice uses; 0 = as the request.
    """

    words: str = ""
    pins: Choices = ()
    others: tuple[tuple[str, Choices], ...] = ()
    formulas: tuple[Formula, ...] = ()
    notes: tuple[str, ...] = ()
    break_even: BreakEvenQuestion[BestPlan] | None = None
    request: Request | None = None
    max_devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideRule:
    """A rule of thumb: its question, its published words, and its advice for a request.

    Args:
        name: identifier.
        question: what people ask.
        statement: the rule in its usual words.
        source: where it is published.
        advise: from facts to advice.
        applies: False of requests for which nobody would ask.
    """

    name: str
    question: str
    statement: str
    source: str
    advise: Callable[[RequestFacts], Advice]
    applies: Callable[[RequestFacts], bool] = applies_to_every_request
