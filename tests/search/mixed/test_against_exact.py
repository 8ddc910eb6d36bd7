"""The search over mixed clusters against the exact space, which judges it: bound and answer where
both have the same plans.

Both have pipelines of single devices. The exact space has also other orders than 1F1B, more than
two runs of like stages and embeddings or heads without a layer; the mixed one also tensor parallel
stages, recompute and any number of replicas.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from shardwright.errors import InfeasibleError, StrategyError
from shardwright.program.training_problem import Problem, under
from shardwright.search.exact.enumerate_tensor_split_trees import TreeSpace
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.find_exact import find_exact
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import ALL, Plan, Shards
from tests.search.exact.brute_lanes import LaneMember, LanesInstance, every_member, written
from tests.search.small_mixed import drawn_mixed, with_one_card
from tests.tiers import random_of, seeds

SPACE = ExactSpace(
    trees=TreeSpace(dims=(), weights=(1,), depth=0),
    microbatches=(1, 2, 3),
    max_stages=3,
    shards=(Shards(optimizer=ALL),),
    lanes=3,
)


def in_both_spaces(instance: LanesInstance, chosen: tuple[LaneMember, ...]) -> bool:
    """Every stage has a layer, a lane has at most two runs of like devices, and microbatches are of
    1, 2, 4 or 8 samples."""
    for lane in chosen:
        labels = [instance.labels[stage.base] for stage in lane.stages]
        if sum(a != b for a, b in pairwise(labels)) > 1:
            return False
        if any(all(item.name != "layers" for item in stage.items) for stage in lane.stages):
            return False
    each = instance.problem.job.global_batch // sum(lane.microbatches for lane in chosen)
    return each in (1, 2, 4, 8)


def as_mixed(plan: Plan) -> Plan:
    """A plan in 1F1B with states sharded over all."""
    orders = tuple(NamedOrder(schedule="1f1b", lanes=(lane.name,)) for lane in plan.lanes)
    return replace(plan, orders=orders, shards=SPACE.shards)


def best_of_both(problem: Problem) -> tuple[float, int]:
    """Seconds of the best plan of both spaces, by simulating each; and how many there are."""
    labels = tuple(
        n for n, g in enumerate(problem.cluster.groups) for _ in range(g.count * g.kind.num_devices)
    )
    blocks = sum(run.count for run in problem.model.runs)
    instance = LanesInstance(
        problem=problem, labels=labels, space=SPACE, blocks=blocks, orders=False
    )
    best, members = (
        inf,
        [chosen for chosen in every_member(instance) if in_both_spaces(instance, chosen)],
    )
    for chosen in members:
        try:
            done = simulate_plan(problem, as_mixed(written(problem, chosen)))
        except StrategyError:
            continue
        best = min(best, done.step_time_s) if done.fits else best
    return best, len(members)


@pytest.mark.parametrize("number", seeds(1, 60, first=5))
def test_the_bound_is_below_the_exact_optimum_and_the_plan_within_its_gap(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = random_of(f"judged {number}")
    problem = drawn_mixed(generator, most=4, layers=(2, 3), batch=8)
    if generator.random() < 0.3:
        problem = with_one_card(problem)
    try:
        answer = find_mixed(problem)
    except InfeasibleError:
        pytest.skip("nothing fits")
    assert answer.certificate.mixed is not None
    lower, found = answer.certificate.lower_bound_s, answer.step_time_s
    exact, both, members = inf, inf, 0
    for closed in answer.certificate.mixed.closed:
        own = under(problem, closed.options)
        try:
            exact = min(exact, find_exact(own, SPACE).step_time_s)
        except InfeasibleError:
            continue
        best, members = best_of_both(own)
        both = min(both, best)
    line = (
        f"{number}: {problem.cluster.expression}: bound {lower:.6g}, plan {found:.6g}, best of both"
        f" {both:.6g}, exact {exact:.6g} s"
    )
    with capsys.disabled():
        sys.stdout.write(
            f"\n{line}; {members} members of both; plan over best of both {found / both - 1:+.2%},"
            f" over exact {found / exact - 1:+.2%}"
        )
    assert lower <= both * (1 + 1e-9)
    assert exact <= both * (1 + 1e-9)
    # The plan is within its gap of all that both spaces have.
    assert found * (1 - answer.certificate.gap) <= both * (1 + 1e-9)
