"""Pipelines whose recomputed layers keep their inputs in host memory, on nodes that have little of
it: no plan that fits is ruled out, and a cut that the labels find fits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InfeasibleError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import (
    facts_of as kernel_facts,
)
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.joint.find_joint import NAMED_ORDERS, find_joint
from shardwright.search.joint.host_memory_share import host_share
from shardwright.search.joint.joint_plan_and_step_costs import JointPlan, plan_of_cut
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_search_state import JointInputs
from shardwright.search.joint.joint_space import PipelineShape, joint_space, shaped_space
from shardwright.search.joint.label_dynamic_program_inputs import has_equal_layers
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import (
    PipelineBound,
    RankChoice,
    bound_pipeline,
)
from shardwright.search.joint.score_joint_plan import path_score, simulate_scored
from shardwright.simulator.prediction import HostMemory
from shardwright.simulator.simulate_plan import fits_hosts
from tests.program.small import cluster_of, problem_of
from tests.search.joint.answers import JointAnswer, part_of
from tests.simulator.test_peak_host_memory import with_host
from tests.strategies import dense_model
from tests.tiers import examples, seeds

OPTIONS = (("cpu_checkpoints", "on"),)
LIMIT = 1e6
ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    inputs: JointInputs
    pipeline: PipelineShape

    @property
    def problem(self) -> Problem:
        return self.inputs.problem


def pipelines_of(node: int, *, memory_bytes: int, capacity: int) -> list[Pipelined]:
    """The pipelines of one split and one chunk a rank, of a model of four layers on four
    devices."""
    cluster = with_host(cluster_of(4, node=node), memory_bytes=memory_bytes)
    asked = problem_of(
        dense_model(layers=4),
        cluster,
        runtime=load_runtime("deepspeed"),
        seq_len=256,
        global_batch=16,
    )
    problem = under(asked, OPTIONS)
    facts = facts_of(problem)
    shaped = shaped_space(problem, joint_space(standard_space(problem, facts)), facts)
    assert shaped is not None
    inputs = JointInputs(
        problem=problem,
        shaped=shaped,
        facts=kernel_facts(problem, devices=4, capacity=capacity),
        capacity=capacity,
    )
    return [
        Pipelined(inputs=inputs, pipeline=one)
        for one in shaped.pipelines
        if one.chunks == 1 and len(one.outers) == 1
    ]


def members(case: Pipelined) -> Iterator[JointPlan]:
    """Every cut, with every recompute of every rank."""
    length, ranks = len(case.inputs.chain), case.pipeline.ranks
    for inner in itertools.combinations(range(1, length), ranks - 1):
        sizes = [b - a for a, b in itertools.pairwise((0, *inner, length))]
        choices = [
            [
                RankChoice(layers=n, split=0, redone=x, selective=y)
                for x in range(n + 1)
                for y in range(n + 1 - x)
            ]
            for n in sizes
        ]
        for cut in itertools.product(*choices):
            yield plan_of_cut(case.inputs.shaped, case.pipeline, cut)


def solved_of(case: Pipelined) -> PipelineBound:
    inputs = case.inputs
    return bound_pipeline(
        inputs.splits(case.pipeline),
        inputs.label_pipeline(case.pipeline),
        limit=LIMIT,
        alike=has_equal_layers(inputs.chain),
    )


def fullest(hosts: tuple[HostMemory, ...]) -> int:
    return max((host.need for host in hosts), default=0)


@pytest.mark.parametrize("seed", seeds(4, 60))
def test_labels_are_below_every_plan_that_fits(seed: int) -> None:
    """With host memory between the least and the most that plans which fit devices need."""
    generator = random.Random(seed)
    node, capacity = generator.choice((1, 2, 4)), smallest_memory_bytes(cluster_of(4, node=1))
    roomy = generator.choice(pipelines_of(node, memory_bytes=2**40, capacity=capacity))
    every = [path_score(roomy.problem, roomy.inputs.shaped, plan) for plan in members(roomy)]
    needs = sorted(max(one.need) for one in every)
    capacity = generator.choice(needs[: len(needs) // 2])
    some = [one for one in every if max(one.need) <= capacity]
    some = generator.sample(some, min(len(some), 40))
    done = [simulate_scored(roomy.problem, one) for one in some]
    hosts = sorted(fullest(one.result.host_memory) for one in done if one.result is not None)
    memory = max(generator.choice(hosts) + generator.choice((-1, 0)), 1)
    case = next(
        one
        for one in pipelines_of(node, memory_bytes=memory, capacity=capacity)
        if one.pipeline == roomy.pipeline
    )
    times = [
        one.seconds
        for one in done
        if one.result is not None
        and one.result.need <= capacity
        and fullest(one.result.host_memory) <= memory
    ]
    found = solved_of(case)
    inputs = case.inputs
    assert found.cuts or not times
    lower = (found.lower_s + inputs.gradient_norm_s(case.pipeline)) * inputs.jitter
    assert lower <= min(times, default=float("inf")) * ROUNDING
    for cut in found.cuts:
        plan = plan_of_cut(inputs.shaped, case.pipeline, cut)
        assert fits_hosts(case.problem, general_plan(case.problem, plan))


@given(
    node=st.sampled_from((1, 2, 3, 4, 8)),
    ranks=st.integers(1, 6),
    stride=st.integers(1, 8),
    repeats=st.integers(1, 4),
    bytes_of=st.lists(st.integers(0, 9), min_size=6, max_size=6),
)
@examples(200)
def test_a_share_never_refuses_what_every_node_has_room_for(
    node: int, ranks: int, stride: int, repeats: int, bytes_of: list[int]
) -> None:
    """Against every node's sum over its devices; the same where a node is full of whole ranks."""
    devices = ranks * stride * repeats
    nodes = -(-devices // node)
    needs = [0] * nodes
    for device in range(devices):
        needs[device // node] += bytes_of[device // stride % ranks]
    cluster = with_host(cluster_of(nodes * node, node=node), memory_bytes=max(*needs, 1, 1))
    share = host_share(cluster, devices=devices, ranks=ranks, stride=stride)
    groups = [
        sum(bytes_of[first : min(first + share.sharing, ranks)])
        for first in range(0, ranks, share.sharing)
    ]
    assert max(groups) <= share.room * ROUNDING
    if share.sharing > 1 or (stride % node == 0 and node <= stride):
        assert max(groups) * (cluster.node.host.memory_bytes / share.room) == pytest.approx(
            max(needs)
        )


def test_a_search_finds_a_plan_where_one_fits_and_says_so_where_none_does() -> None:
    """Four layers on four ranks: with a byte less in every node than the plan takes that keeps
    least there nothing fits, and with those bytes the bound is below every plan that does."""
    roomy = [
        one
        for one in pipelines_of(4, memory_bytes=2**40, capacity=2**40)
        if one.pipeline.ranks == 4 and one.pipeline.zero == 0 and one.pipeline.microbatches == 16
    ]
    problem, shaped = roomy[0].problem, roomy[0].inputs.shaped
    every = [path_score(problem, shaped, plan) for one in roomy for plan in members(one)]
    capacity = min(max(one.need) for one in every)
    done = [simulate_scored(problem, one) for one in every if max(one.need) <= capacity]
    fits = [one for one in done if one.result is not None and one.result.need <= capacity]
    least = min(fullest(one.result.host_memory) for one in fits if one.result is not None)
    facts = facts_of(problem)
    narrow: dict[str, tuple[int | str, ...]] = {"pp": (4,), "mbs": (1,), "zero": (0,)}
    asked = standard_space(problem, facts)
    values = tuple((axis, narrow.get(axis, had)) for axis, had in asked.values)
    space = replace(asked, values=values)

    def search(memory_bytes: int) -> JointAnswer:
        own = replace(problem, cluster=with_host(problem.cluster, memory_bytes=memory_bytes))
        return find_joint(own, space, facts, capacity=capacity, orders=NAMED_ORDERS)

    with pytest.raises(InfeasibleError):
        search(least - 1)
    answer = search(least)
    rest = [one for one in fits if one.result is not None]
    seconds = [one.seconds for one in rest if fullest(one.result.host_memory) <= least]  # type: ignore[union-attr]
    assert answer.certificate.lower_bound_s <= min(seconds) * ROUNDING
    assert min(seconds) <= answer.step_time_s * ROUNDING
    assert part_of(answer).complete
