"""Plans that the search over mixed clusters finds train as the unsplit model: the best one and all
that were next."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

pytest.importorskip("torch")

from shardwright.api.request_to_problem import problem_of
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, general_plan
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.strategy.plan.plan import Plan
from tests.search.mixed.members import KINDS, batch_of, drawn_plan, with_batch
from tests.search.mixed.test_find_fastest import tiny
from tests.tiers import in_both, in_proof, many, numbers

ASKED = {
    "two kinds": Request(
        model="examples/tiny.json",
        cluster="h100-sxm:2+a100-sxm-80gb:2",
        seq_len=64,
        global_batch=10,
        pins=(("mbs", ("1",)),),
        top=9,
    ),
    "many slow ones": Request(
        model="examples/tiny.json",
        cluster="h100-sxm:1+v100-sxm-16gb:4",
        seq_len=64,
        global_batch=14,
        pins=(("mbs", ("1",)),),
        top=9,
    ),
    "three kinds": Request(
        model="examples/tiny.json",
        cluster="h100-sxm:1+a100-sxm-80gb:2+v100-sxm-16gb:2",
        seq_len=64,
        global_batch=9,
        pins=(("mbs", ("1",)),),
        top=9,
    ),
}


@lru_cache
def found(name: str) -> GeneralAnswer[MixedPlan | None]:
    return plan_mixed(ASKED[name])


def plans(name: str) -> list[Plan]:
    """The best plan and those behind it."""
    part = found(name).certificate.mixed
    assert part is not None
    return [found(name).plan, *(runner.plan for runner in part.runners)]


PROVEN = many(2, 99)
"""Plans of an answer that are trained, the best first."""


@in_both
@pytest.mark.parametrize("name", ASKED if in_proof() else ("two kinds", "three kinds"))
def test_found_plans_train_as_the_unsplit_model(name: str) -> None:
    problem = problem_of(ASKED[name])
    for plan in plans(name)[:PROVEN]:
        proof = prove_plan(problem.model, problem.job, plan)
        assert proof.equal, proof.worst


@pytest.mark.parametrize(
    "kind", [KINDS[1], *(pytest.param(kind, marks=pytest.mark.proof) for kind in KINDS[2:])]
)
@in_both
def test_found_plans_with_experts_train_as_the_unsplit_model(kind: str) -> None:
    each = many(2, 4)
    problem = tiny(f"h100-sxm:{each}+a100-sxm-80gb:{each}", batch=3 * each, kind=kind)
    answer = find_mixed(problem, top=4)
    part = answer.certificate.mixed
    assert part is not None
    assert any(
        " ep" in one for one in (part.pipelines, *(runner.pipelines for runner in part.runners))
    )
    for plan in (answer.plan, *(runner.plan for runner in part.runners))[: PROVEN // 2]:
        proof = prove_plan(problem.model, problem.job, plan)
        assert proof.equal, proof.worst


def test_they_have_several_lanes_and_unlike_pipelines() -> None:
    every = [plan for name in ("two kinds", "three kinds") for plan in plans(name)]
    assert any(
        len(plan.lanes) > 1 and len({lane.samples for lane in plan.lanes}) > 1 for plan in every
    )
    assert any(len({len(lane.stages) for lane in plan.lanes}) > 1 for plan in every)


@in_both
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.proof] if i != 2 else [])
        for i, kind in enumerate(KINDS)
    ],
)
@pytest.mark.parametrize("seed", numbers(1, 40))
def test_any_plan_of_the_space_trains_as_the_unsplit_model(seed: int, kind: str) -> None:
    """Up to two lanes of random pipelines, whose meshes, cuts and shares differ between and within
    lanes."""
    generator = random.Random(seed)
    problem = tiny(
        generator.choice(("h100-sxm:4+v100-sxm-16gb:4", "a100-sxm-40gb:2+v100-sxm-16gb:8")),
        seed=seed,
        kind=kind,
    )
    pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
    drawn = None
    while (
        drawn is None
        or len({pipelines.stage_costs.table.mesh(row) for lane in drawn.lanes for row in lane.rows})
        < 2
    ):
        drawn = drawn_plan(pipelines, generator, lanes=generator.choice((1, 2)))
    problem = with_batch(problem, batch_of(pipelines.stage_costs, drawn))
    proof = prove_plan(problem.model, problem.job, general_plan(pipelines.stage_costs, drawn))
    assert proof.equal, proof.worst
