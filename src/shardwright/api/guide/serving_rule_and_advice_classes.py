"""A rule of the serving guide as code: what it says, when it applies, and the deployments."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.guide.applies_to_every_request import applies_to_every_request
from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.serving_request_facts_and_simulations import (
    ServingFacts,
    SimulatedDeployment,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Formula


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAdvice:
    """Advice of a serving rule for one request, with the deployment that follows it.

    Args:
        words: the advice; empty for a rule without advice about the deployment.
        deployment: notation of the deployment that follows the advice.
        others: (choice in words, notation) of other choices.
        break_even: None if the rule asks for none.
    """

    words: str = ""
    deployment: str = ""
    others: tuple[tuple[str, str], ...] = ()
    formulas: tuple[Formula, ...] = ()
    notes: tuple[str, ...] = ()
    break_even: BreakEvenQuestion[SimulatedDeployment] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRule:
    """A rule of thumb of serving: its question, its published words, and its advice."""

    name: str
    question: str
    statement: str
    source: str
    advise: Callable[[ServingFacts], ServingAdvice]
    applies: Callable[[ServingFacts], bool] = applies_to_every_request
