"""Searches for plans of models of which only a part is trained: answers equal brute force,
certificates hold, memory is saved."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from shardwright.api.searches.grid_search import check, plan
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.search.search_request import Request
from tests.search.problems import Case, runtime_called, small_problem, thinned
from tests.search.test_optimal import MIDDLE, assert_answer_is_best
from tests.tiers import many, numbers

PARTS = ("lora:r4", "lora:r8:attn", "frozen:embed", "frozen:attn", "lora:r2 frozen:embed,head")


def partly_case(seed: int) -> Case:
    """A small random problem of which some part is trained; half of them under a framework that
    gathers parameters."""
    generator = random.Random(seed)
    problem = small_problem(generator)
    runtime = generator.choice((problem.runtime, runtime_called("torchtitan")))
    problem = replace(
        problem, model=trained(problem.model, generator.choice(PARTS)), runtime=runtime
    )
    facts = facts_of(problem)
    whole = generator.choice((standard_space, exhaustive_space))(problem, facts)
    return Case(problem=problem, facts=facts, space=thinned(whole, generator, most=many(250, 3000)))


def test_answers_equal_brute_force() -> None:
    seen: Counter[str] = Counter()
    for seed in numbers(4, 100):
        known = assert_answer_is_best(partly_case(seed), MIDDLE, Counter())
        seen.update(
            members=len(known),
            gathered=sum(g.zero == 3 for g in known),
            piped=sum(g.pp > 1 for g in known),
        )
    assert min(seen.values()) > many(5, 20), seen


@pytest.mark.parametrize(
    ("train", "runtime"),
    [
        ("lora:r16", "megatron-core"),
        pytest.param("lora:r16", "torchtitan", marks=pytest.mark.proof),
        ("frozen:mlp,embed", "megatron-core"),
    ],
)
def test_the_certificate_of_a_partly_trained_model_holds(train: str, runtime: str) -> None:
    request = Request(
        model="llama-3.2-1b",
        cluster="h100-sxm:4",
        seq_len=4096,
        global_batch=16,
        train=train,
        runtime=runtime,
        top=1,
    )
    answer = plan(request)
    assert answer.certificate.optimal
    assert answer.request is not None
    assert check(answer.request, answer).leaves > 100
    found = answer.prediction
    assert found.model.trainable < found.model.parameters
    assert found.full_bytes > found.reserved_bytes


def test_a_base_that_no_device_holds_whole_is_planned() -> None:
    """70 GB of weights on eight devices of 40 GB that have no fast link to cut tensors over: each
    holds an eighth."""
    request = Request(
        model="llama-3.1-70b",
        cluster="a100-sxm-40gb:8",
        seq_len=2048,
        global_batch=64,
        train="lora:r16",
        runtime="torchtitan",
        top=1,
    )
    answer = plan(replace(request, pins=(("pp", ("1",)), ("tp", ("1",)), ("cp", ("1",)))))
    assert answer.grid.zero == 3
    assert answer.certificate.optimal
