"""Every rule, for every canonical problem: what a guide says is what its searches found."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import import_module
from math import isclose
from pkgutil import iter_modules

import pytest

from shardwright.api.guide import rules as rules_package
from shardwright.api.guide import serving_rules as serving_package
from shardwright.api.guide.evaluate_formula import evaluate
from shardwright.api.guide.judge_rule import EQUAL
from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide import make_serving_guide
from shardwright.api.guide.rule_table import RULES
from shardwright.api.guide.serving_rule_table import SERVING_RULES
from shardwright.api.request_to_command import command_text
from shardwright.api.searches.grid_search import plan
from shardwright.report.guide.guide_screen import guide_line
from shardwright.report.page.view_data.guide_rules_and_verdicts import Guide, Outcome, Rule
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.api.guide.canonical_problems import CANONICAL
from tests.tiers import cases

NAMES = cases(list(CANONICAL), 1)

SERVED = (
    ("llama-3.1-8b", "h100-sxm:8"),
    ("deepseek-v3", "h200-sxm:16"),
    ("llama-3.1-70b", "h100-pcie:4"),
)


@cache
def guide_of(name: str) -> Guide:
    return make_guide(CANONICAL[name])


@cache
def serving_guide_of(model: str, cluster: str) -> Guide:
    return make_serving_guide(model, cluster, tokens=4608, answer=512, concurrency=64)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_plan_is_the_plan_of_the_same_request(name: str) -> None:
    best, answer = guide_of(name).best, plan(CANONICAL[name], sensitive=False)
    prediction = answer.prediction
    assert answer.certificate.optimal
    assert best.gap == 0.0
    assert (best.strategy, best.step_s, best.tokens_per_s, best.memory_share) == (
        print_grid(answer.grid),
        prediction.step_time_s,
        prediction.tokens_per_s,
        prediction.reserved_bytes / prediction.capacity_bytes,
    )
    assert best.command == command_text(CANONICAL[name])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_guide_says_follows_from_its_searches(name: str) -> None:
    guide = guide_of(name)
    for rule in guide.rules:
        require_true_formulas(rule)
        require_true_verdict(rule)
        require_true_break_even(rule)
    not_held = sum(
        rule.verdict.outcome is not Outcome.HOLDS
        for rule in guide.rules
        if rule.verdict is not None
    )
    judged = sum(rule.verdict is not None for rule in guide.rules)
    assert guide_line(guide).split("\t")[2] == f"{not_held} of {judged} rules do not hold\n"
    assert guide_document(guide)["rules"][0]["name"] == "does_it_fit"


def require_true_formulas(rule: Rule) -> None:
    """Each formula's text is arithmetic of its numbers, with the value that it states."""
    for formula in rule.formulas:
        values = {symbol.name: symbol.value for symbol in formula.symbols}
        assert formula.value == evaluate(formula.expression, values), formula
        assert isclose(evaluate(formula.substituted, {}), formula.value, rel_tol=1e-4), formula
        assert formula.source
        assert set(values) >= {
            name
            for name in formula.expression.replace("(", " ").replace(")", " ").split()
            if name.isalpha() and name not in ("max", "min", "sqrt", "ceil")
        }


def require_true_verdict(rule: Rule) -> None:
    """A rule that is slower here says how much it loses; a rule that holds loses nothing."""
    assert all((rule.question, rule.statement, rule.source))
    verdict = rule.verdict
    if verdict is None:
        assert rule.formulas or rule.notes, rule.name
        return
    assert verdict.pins or rule.name == "domain_divisors"
    if verdict.loss is None:
        assert verdict.outcome in (Outcome.DOES_NOT_FIT, Outcome.NOT_POSSIBLE)
        assert verdict.followed.step_s is None
        assert verdict.followed.why
    elif verdict.loss >= EQUAL:
        assert verdict.outcome is Outcome.LOSES
        assert f"Here it loses {100 * verdict.loss:.1f} %" in verdict.sentence
    elif verdict.loss <= -EQUAL:
        assert verdict.outcome is Outcome.GAINS
        assert f"Here it gains {-100 * verdict.loss:.1f} %" in verdict.sentence
    else:
        assert verdict.outcome is Outcome.HOLDS
        assert verdict.sentence.startswith("It holds here")


def require_true_break_even(rule: Rule) -> None:
    """The two sides of a break-even are searched plans of the values that the sentence names."""
    found = rule.break_even
    if found is None:
        return
    for value, side in ((found.below, found.plan_below), (found.above, found.plan_above)):
        assert (value is None) == (side is None)
        if value is not None:
            assert f"{value:,}" in found.sentence
    if found.below is not None and found.above is not None:
        assert found.below < found.above


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_that_of_two_searched_plans(name: str) -> None:
    """Two of the rules that lose, searched again with their pins by `plan` itself."""
    guide, request = guide_of(name), CANONICAL[name]
    own = [
        rule
        for rule in guide.rules
        if rule.verdict is not None
        and rule.verdict.outcome is Outcome.LOSES
        and rule.name in ("data_parallelism_first", "microbatch_size", "starting_point_by_size")
    ]
    for rule in own[:2]:
        assert rule.verdict is not None
        assert guide.best.step_s is not None
        pins = tuple(
            (w.split("=")[0], tuple(w.split("=")[1].split(","))) for w in rule.verdict.pins
        )
        answer = plan(
            type(request)(**{**fields_of(request), "pins": pins, "top": 0}), sensitive=False
        )
        assert answer.prediction.step_time_s == rule.verdict.followed.step_s
        assert rule.verdict.loss == answer.prediction.step_time_s / guide.best.step_s - 1


def fields_of(request: object) -> dict[str, object]:
    return {name: getattr(request, name) for name in type(request).__dataclass_fields__}


@pytest.mark.parametrize("name", NAMES)
def test_break_evens_have_the_property_on_one_side_alone(name: str) -> None:
    for rule in guide_of(name).rules:
        found = rule.break_even
        if found is None or found.plan_below is None or found.plan_above is None:
            continue
        has = {
            "context_parallel_length": lambda grid: grid.cp > 1,
            "pipeline_bubble": lambda grid: grid.pp > 1,
            "data_parallel_bound": lambda grid: grid.tp * grid.cp * grid.pp == 1,
            "technique_by_device_count": lambda grid: grid.tp * grid.cp * grid.pp > 1,
        }[rule.name]
        assert has(parse_grid(found.plan_above.strategy))
        if found.plan_below.strategy:
            assert not has(parse_grid(found.plan_below.strategy))


@pytest.mark.parametrize("served", SERVED)
def test_serving_verdicts_follow_from_simulations(served: tuple[str, str]) -> None:
    guide = serving_guide_of(*served)
    assert guide.best.simulated
    for rule in guide.rules:
        require_true_formulas(rule)
        require_true_verdict(rule)
        if rule.verdict is not None and rule.verdict.loss is not None:
            plans = [rule.verdict.followed, *(other.plan for other in rule.verdict.others)]
            assert all(one.simulated for one in plans)
            assert all(shlex.split(one.command)[1] == "serve-simulate" for one in plans)


def test_each_module_of_a_rule_is_in_the_table() -> None:
    for package, table in ((rules_package, RULES), (serving_package, SERVING_RULES)):
        modules = {
            name
            for _, name, _ in iter_modules(package.__path__)
            if hasattr(import_module(f"{package.__name__}.{name}"), "RULE")
        }
        assert sorted(rule.name for rule in table) == sorted(modules), (
            f"add the rule to the table of {package.__name__}"
        )


@pytest.mark.proof
def test_each_rule_applies_to_a_canonical_problem() -> None:
    found = {rule.name for name in CANONICAL for rule in guide_of(name).rules}
    assert found == {rule.name for rule in RULES}
    served = {rule.name for pair in SERVED for rule in serving_guide_of(*pair).rules}
    assert served == {rule.name for rule in SERVING_RULES}
