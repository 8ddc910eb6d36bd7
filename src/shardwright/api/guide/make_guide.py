"""Make the training guide of a request: its best plan, and every rule judged by searches."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import shardwright
from shardwright.api.guide.best_plan_record import BestPlan, searched_plan
from shardwright.api.guide.guide_rule_and_advice_classes import GuideRule
from shardwright.api.guide.judge_rule_against_best_plan import judge_rule
from shardwright.api.guide.request_facts import RequestFacts, facts_of_request
from shardwright.api.guide.search_cached_plans import PlanSearches
from shardwright.api.guide.training_rules_in_order import RULES
from shardwright.api.request_to_command import command_text
from shardwright.api.request_to_problem import SearchMethod, method_of
from shardwright.api.searches import grid_search
from shardwright.errors import InfeasibleError, UsageError
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    GUIDE_SCHEMA,
    GUIDE_VERSION,
    Guide,
    Rule,
)
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP

SEARCHES_OF_A_RULE = 4
"""Typical number of searches of a rule, for the progress bar alone."""


def make_guide(
    request: Request,
    *,
    time_limit_s: float = inf,
    progress: Progress | None = None,
    rules: Sequence[GuideRule] = RULES,
) -> Guide:
    """The guide of a request: the plan that `plan` finds, and the rules that apply.

    Args:
        time_limit_s: seconds after which no further rule is judged; those left out are named.
        rules: rules to judge, in order.

    Raises:
        UsageError: the request is searched by another search than that of grids.
        ShardwrightError: as `plan`, except that a request without a plan that fits has a guide that
            says so.
    """
    require_grid_search(request)
    searches = PlanSearches(
        time_limit_s=time_limit_s, progress=progress, expected=SEARCHES_OF_A_RULE * len(rules)
    )
    best, hint = _best_plan(request, progress)
    searches.keep(request, best)
    facts = facts_of_request(request, best, searches.best)
    judged, skipped = _judged_rules(facts, rules if best.grid is not None else rules[:1], searches)
    return Guide(
        kind="training",
        title=(
            f"{request.model} on {request.cluster}: {request.global_batch:,} sequences of"
            f" {request.seq_len:,} tokens a step"
        ),
        command=command_text(request, verb="guide"),
        version=shardwright.__version__,
        best=searched_plan(best),
        hint=hint,
        rules=judged,
        searches=searches.count,
        skipped=skipped,
    )


def require_grid_search(request: Request) -> None:
    """Raise UsageError for requests whose plans are no grids.

    Raises:
        UsageError: the cluster has several kinds of devices, or the space or objective is another.
    """
    method = method_of(request)
    if method is not SearchMethod.GRID:
        raise UsageError(
            f"the guide judges rules by searches of grids, and this is a {method.value} search",
            hint="name a cluster with one kind of device, as h100-sxm:64",
        )


def _best_plan(request: Request, progress: Progress | None) -> tuple[BestPlan, str]:
    """(plan that `plan` finds, empty text), or (no plan with its reason, hint) where none fits."""
    try:
        answer = grid_search.plan(request, progress=progress, sensitive=False)
    except InfeasibleError as error:
        return BestPlan(request=request, why=error.message), error.hint
    plan_found = BestPlan(
        request=request,
        grid=answer.grid,
        prediction=answer.prediction,
        gap=answer.certificate.gap,
    )
    return plan_found, ""


def _judged_rules(
    facts: RequestFacts, rules: Sequence[GuideRule], searches: PlanSearches
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """(rules that apply, judged until the time limit; names of the rules left out after it).

    A rule that is judged when all searches are stopped is left out: its searches did not end.
    """
    judged: list[Rule] = []
    skipped: list[str] = []
    for rule in rules:
        if STOP.is_set() or (judged and searches.is_late):
            skipped.append(rule.name)
        elif rule.applies(facts):
            judgement = judge_rule(rule, facts, is_late=lambda: searches.is_late)
            if STOP.is_set():
                skipped.append(rule.name)
            else:
                judged.append(judgement)
    return tuple(judged), tuple(skipped)


def guide_document(guide: Guide) -> dict[str, Any]:
    """JSON document of a guide: its fields by name, with schema and version."""
    return {
        "schema": GUIDE_SCHEMA,
        "schema_version": GUIDE_VERSION,
        **to_json_value(guide, names={}),
    }
