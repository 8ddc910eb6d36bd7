"""Searches for plans of models beside a teacher: the answer equals brute force under bounds in
their order, and the certificate holds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from shardwright.api.searches.grid_search import check, plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.errors import ShardwrightError, StrategyError, UsageError
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.search import search_request
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.search.search_request import Request
from tests.search.problems import Case, small_model, small_problem, thinned
from tests.search.test_optimal import MIDDLE, assert_answer_is_best
from tests.tiers import many, numbers

ASKED = Request(
    model="llama-3.2-1b",
    cluster="h100-sxm:8",
    seq_len=2048,
    global_batch=32,
    teacher="llama-3.1-8b",
    top=1,
)


def taught_case(seed: int) -> Case:
    """A small random problem with a teacher of the same words."""
    generator = random.Random(seed)
    problem = small_problem(generator)
    others = (small_model(generator) for _ in iter(int, 1))
    model = with_teacher(
        problem.model, next(other for other in others if other.vocab == problem.model.vocab)
    )
    problem = replace(problem, model=model)
    facts = facts_of(problem)
    whole = generator.choice((standard_space, exhaustive_space))(problem, facts)
    return Case(problem=problem, facts=facts, space=thinned(whole, generator, most=many(500, 3000)))


def test_answers_equal_brute_force() -> None:
    seen: Counter[str] = Counter()
    for seed in numbers(2, 100, first=4):
        known = assert_answer_is_best(taught_case(seed), MIDDLE, Counter())
        seen.update(
            members=len(known),
            piped=sum(g.pp > 1 for g in known),
            redone=sum(g.recompute.value != "none" for g in known),
        )
        seen["gathered"] += sum(g.zero == 3 for g in known)
    assert min(seen.values()) > many(5, 20), seen


def test_the_certificate_beside_a_teacher_holds() -> None:
    answer = plan(ASKED)
    assert answer.certificate.optimal
    assert answer.request is not None
    assert check(answer.request, answer).leaves > 100
    assert answer.prediction.model.trainable < answer.prediction.model.parameters


def test_memory_is_that_of_the_model_and_two_bytes_of_the_teacher_and_both_logits() -> None:
    alone, beside = (
        simulate(replace(ASKED, teacher=name), strategy="tp2 dp4 mbs1 zero1")
        for name in ("", ASKED.teacher)
    )
    plain, both = dict(alone.stages[0].items), dict(beside.stages[0].items)
    parameters = 8_030_261_248
    spread = 32 * 2 * 4096 + 4096  # norms, which every member of tp has whole
    assert beside.model.parameters - alone.model.parameters == parameters
    assert both["parameters"] - plain["parameters"] == 2 * ((parameters - spread) // 2 + spread)
    assert [both[name] - plain[name] for name in ("gradients", "optimizer", "activations")] == [
        0,
        0,
        0,
    ]
    words = 2048 * 128256 // 2
    assert both["logits"] == words * (2 * (2 + 4 + 4) + 3 * 4 + 4)
    assert beside.step_time_s > alone.step_time_s


@pytest.mark.parametrize("strategy", ["tp2 dp4 mbs1", "pp4 dp2 mbs1"])
def test_nothing_of_the_teacher_runs_again(strategy: str) -> None:
    """A recompute of all layers costs what it costs without a teacher, but for what lies beside
    it."""
    times = {
        (name, again): (
            simulate(replace(ASKED, teacher=name), strategy=f"{strategy} recompute={again}")
            .stages[0]
            .items
        )
        for name in ("", ASKED.teacher)
        for again in ("none", "full")
    }
    saved = {key: dict(items)["activations"] for key, items in times.items()}
    assert saved["", "none"] == saved[ASKED.teacher, "none"]
    assert saved["", "full"] == saved[ASKED.teacher, "full"]


def test_several_chunks_beside_a_teacher_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"grid\.teacher"):
        simulate(ASKED, strategy="dp4 pp2 vpp2 mbs1 schedule=interleaved-1f1b")


def test_joint_searches_beside_a_teacher_are_refused() -> None:
    with pytest.raises(UsageError, match="yet") as caught:
        plan_joint(replace(ASKED, top=search_request.TOP))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("teacher", "said"),
    [("gpt3-175b", "words"), ("qwen3-vl-8b", "reads image"), ("no-such", "no-such")],
)
def test_teachers_that_do_not_fit_are_refused(teacher: str, said: str) -> None:
    with pytest.raises(ShardwrightError, match=said) as caught:
        simulate(replace(ASKED, teacher=teacher), strategy="dp8 mbs1")
    assert caught.value.hint
