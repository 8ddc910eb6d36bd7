"""Every rule, for every canonical problem: what a guide says is what its searches found."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib import import_module
from math import isclose
from pkgutil import iter_modules

import pytest

from shardwright.api.guide import rules as rules_package
from shardwright.api.guide import serving_rules as serving_package
from shardwright.api.guide.break_even_axis_units import BREAK_EVEN_AXES
from shardwright.api.guide.evaluate_formula import evaluate
from shardwright.api.guide.judge_rule_against_best_plan import EQUAL
from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.api.guide.serving_rules_in_order import SERVING_RULES
from shardwright.api.guide.training_rules_in_order import RULES
from shardwright.api.request_to_command import command_text
from shardwright.api.request_to_problem import problem_of
from shardwright.api.searches.grid_search import plan
from shardwright.cli.main import run
from shardwright.report.guide.guide_screen import guide_line
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Guide,
    Outcome,
    Rule,
)
from shardwright.search.search_request import Request
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.api.guide.canonical_problems import CANONICAL
from tests.api.guide.facts_of_requests import serving_facts_of
from tests.tiers import cases, in_proof

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
    request = Request(model=model, cluster=cluster, seq_len=4608, global_batch=64)
    return make_serving_guide(request, answer=512)


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
    """The two sides of a break-even are plans of the values that the sentence names."""
    found = rule.break_even
    if found is None:
        return
    for side in found.sides:
        assert BREAK_EVEN_AXES[found.axis].text(side.value) in found.sentence
    if len(found.sides) == 2:
        below, above = found.sides
        assert below.value < above.value
        assert below.has is not above.has


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
        for side in () if found is None else found.sides:
            assert has_property(rule.name, side.plan.strategy, CANONICAL[name]) is side.has, rule


def has_property(rule: str, strategy: str, request: Request) -> bool:
    """The property of a rule's break-even, read from the plan's text; False without a plan."""
    if not strategy:
        return False
    grid, island = parse_grid(strategy), problem_of(request).cluster.node.island
    recomputed = [
        option for option, on in grid.options if option[:10] == "recompute_" and on == "on"
    ]
    return {
        "does_it_fit": True,
        "data_parallelism_first": grid.tp * grid.cp * grid.pp == 1,
        "technique_by_device_count": grid.tp * grid.cp * grid.pp > 1,
        "tensor_parallel_limit": grid.tp > island,
        "largest_tensor_parallel_degree": grid.tp >= 8,
        "data_parallel_bound": grid.tp * grid.cp * grid.pp == 1,
        "shard_inside_node": grid.shard == 0,
        "context_parallel_length": grid.cp > 1,
        "ring_or_ulysses": grid.ulysses == 1,
        "pipeline_bubble": grid.pp > 1,
        "virtual_stages": grid.vpp == 1,
        "recompute_or_not": grid.recompute.value == "none" and not recomputed,
        "recompute_or_offload": grid.offload == 0,
        "microbatch_size": grid.microbatch > 1,
        "experts_inside_domain": grid.ep > island,
    }[rule]


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_of_a_break_even_are_planned_again(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command beside each plan finds it: one break-even of each axis, all in a proof."""
    found = [rule.break_even for rule in guide_of(name).rules if rule.break_even is not None]
    chosen = found if in_proof() else {one.axis: one for one in found}.values()
    for side in (side.plan for one in chosen for side in one.sides):
        verb, *words = shlex.split(side.command)[1:]
        assert verb == "plan"
        code = run([verb, *words, "--json"])
        answer = json.loads(capsys.readouterr().out or "{}")
        if side.step_s is None:
            assert code == 6
        else:
            assert code == 0
            assert answer["prediction"]["step_time_s"] == pytest.approx(side.step_s, rel=1e-8)
            assert answer["strategy"] == side.strategy


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
        require_true_break_even(rule)


@pytest.mark.parametrize("served", SERVED)
def test_both_sides_of_a_serving_break_even_are_simulated_again(
    served: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two deployments the one of the rule is better on one side, and the other on the other."""
    rules = [rule for rule in serving_guide_of(*served).rules if rule.break_even is not None]
    assert rules
    for rule in rules:
        assert rule.break_even is not None
        sides = [side.plan for side in rule.break_even.sides]
        for side in sides:
            assert run([*shlex.split(side.command)[1:], "--json"]) == 0
            metrics = json.loads(capsys.readouterr().out)["metrics"]
            assert metrics["tpot"]["mean"] == pytest.approx(side.step_s, rel=1e-6)
        if len(sides) == 2 and rule.name != "batch_knee":
            assert sides[0].strategy != sides[1].strategy


def test_a_simulated_break_even_is_where_the_faster_deployment_changes() -> None:
    """8B on eight devices: replicas against one wide worker, simulated one load after another."""
    rule = next(
        rule for rule in serving_guide_of(*SERVED[0]).rules if rule.name == "smallest_worker"
    )
    found = rule.break_even
    assert found is not None
    facts = serving_facts_of(*SERVED[0], prompt=4096, answer=512, load=64)
    assert [side.has for side in found.sides] == [False, True]
    for side in found.sides:
        narrow, wide = (
            facts.simulated(text, concurrency=side.value).tokens_per_s
            for text in ("agg 8x(tp1)", "agg 1x(tp8)")
        )
        assert (narrow > wide) is side.has


def test_the_knee_is_where_twice_the_requests_gain_less_than_the_root_of_two() -> None:
    rule = next(rule for rule in serving_guide_of(*SERVED[0]).rules if rule.name == "batch_knee")
    found = rule.break_even
    assert found is not None
    few, many = found.sides
    assert many.value == 2 * few.value
    facts = serving_facts_of(*SERVED[0], prompt=4096, answer=512, load=64)
    below, above, twice = (
        facts.simulated(many.plan.strategy, concurrency=load).tokens_per_s
        for load in (few.value, many.value, 2 * many.value)
    )
    assert above / below >= 2**0.5 > twice / above


def test_each_module_of_a_rule_is_in_the_table() -> None:
    for package, table in ((rules_package, RULES), (serving_package, SERVING_RULES)):
        modules = [
            import_module(f"{package.__name__}.{name}")
            for _, name, _ in iter_modules(package.__path__)
        ]
        rules = [module.RULE.name for module in modules if hasattr(module, "RULE")]
        assert len(rules) > 5
        assert sorted(rule.name for rule in table) == sorted(rules), (
            f"add the rule to the table of {package.__name__}"
        )


@pytest.mark.proof
def test_each_rule_applies_to_a_canonical_problem() -> None:
    found = {rule.name for name in CANONICAL for rule in guide_of(name).rules}
    assert found == {rule.name for rule in RULES}
    served = {rule.name for pair in SERVED for rule in serving_guide_of(*pair).rules}
    assert served == {rule.name for rule in SERVING_RULES}
