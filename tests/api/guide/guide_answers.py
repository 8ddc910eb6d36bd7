"""The guide's answers to questions of practitioners: rules, verdicts and losses of pinned plans."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from shardwright.api.guide import make_guide
from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.guide.request_facts import RequestFacts, facts_of_request
from shardwright.api.guide.search_cached_plans import PlanSearches
from shardwright.api.guide.training_rules_in_order import RULES
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Comparison,
    Rule,
    Verdict,
)
from shardwright.search.search_request import Request

AS_GOOD = 0.05
"""Loss up to which a choice is as good as the accepted one."""
SEARCHES = PlanSearches()


def request(model: str, cluster: str, length: int = 4096, batch: int = 256) -> Request:
    return Request(model=model, cluster=cluster, seq_len=length, global_batch=batch)


@cache
def rule_of(name: str, wanted: Request) -> Rule:
    """One rule of a request's guide, whose plans are searched once for all of its rules."""
    rules = [rule for rule in RULES if rule.name == name]
    return make_guide._judged_rules(_facts_of(wanted), rules, SEARCHES)[0][0]


@cache
def _facts_of(wanted: Request) -> RequestFacts:
    found, _ = make_guide._best_plan(wanted, None)
    SEARCHES.keep(wanted, found)
    return facts_of_request(wanted, found, SEARCHES.best)


def verdict(name: str, wanted: Request) -> Verdict:
    found = rule_of(name, wanted).verdict
    assert found is not None
    return found


def other(found: Verdict, choice: str) -> Comparison:
    return next(one for one in found.others if one.choice.startswith(choice))


def loss(wanted: Request, **pins: int | str) -> float:
    """Loss of the best plan with pinned values."""
    return best(wanted, **pins).step_s / best(wanted).step_s - 1


def best(wanted: Request, **pins: int | str) -> BestPlan:
    """The best plan with pinned values."""
    pairs = tuple((axis, (str(value),)) for axis, value in pins.items())
    return SEARCHES.best(replace(wanted, pins=pairs))


def value(rule: Rule, quantity: str) -> float:
    return next(one.value for one in rule.formulas if one.quantity.startswith(quantity))


def require_a_test_of_each_question(table: Path, tests: Iterable[str], *, number: int) -> None:
    """Assert that each row of a table of questions has a test that begins with its number."""
    names = tuple(tests)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) == number
    for row in rows:
        assert all(row.values())
        assert row["judged by"] in ("formula", "choice", "direction")
        assert any(name.startswith(f"test_{row['number']}_") for name in names), row["question"]
