"""Nodes whose islands PCIe joins: bounds stay in order, and the answer is brute force's."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from shardwright.hardware.cluster import Cluster, NodeTier
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from tests.search.problems import Case, facts_of, small_case
from tests.search.test_optimal import assert_answer_is_best
from tests.simulator.test_bounds import NARROW, WIDE, around, assert_in_order, drawn
from tests.tiers import many, seeds


def divided(cluster: Cluster, draw: random.Random) -> Cluster:
    """The cluster with nodes of two levels inside: islands of half a processor, processors, and the
    link between two."""
    group = cluster.groups[0]
    kind = group.kind
    sizes = [
        size for size in (kind.num_devices // 4, kind.num_devices // 2, kind.num_devices) if size
    ]
    slot = replace(
        kind.scale_up, bandwidth=draw.choice((8e9, 32e9)), efficiency=0.5, latency_s=4e-6
    )
    between = replace(slot, bandwidth=draw.choice((2e9, 20e9)), efficiency=1.0, latency_s=5e-6)
    tiers = [NodeTier(name="processor", num_devices=size, link=slot) for size in sizes[1:-1]]
    tiers += (
        [NodeTier(name="sockets", num_devices=kind.num_devices, link=between)]
        if len(sizes) > 1
        else []
    )
    return replace(
        cluster,
        groups=(replace(group, kind=replace(kind, island=sizes[0], node_tiers=tuple(tiers))),),
    )


@pytest.mark.parametrize("block", seeds(1, 20))
def test_each_tier_bounds_the_next_in_divided_nodes(block: int) -> None:
    draw = random.Random(4000 + block)
    levels = 0
    for _ in range(many(6, 30)):
        problem, grid = drawn(draw)
        problem = replace(problem, cluster=divided(problem.cluster, draw))
        levels = max(levels, len(problem.cluster.tiers()))
        bounded = bound_space(
            problem,
            around(grid, alike=problem.model in (NARROW, WIDE)),
            facts_of(problem),
            capacity=10**15,
        )
        for place in draw.sample(
            range(bounded.members.num_members), min(4, bounded.members.num_members)
        ):
            assert_in_order(problem, bounded, place)
    assert levels >= 4


@pytest.mark.parametrize("block", seeds(1, 8))
def test_the_answer_equals_brute_force_in_divided_nodes(block: int) -> None:
    seen: Counter[str] = Counter()
    draw = random.Random(5000 + block)
    for turn, seed in enumerate(range(many(3, 20))):
        case = small_case(9000 + 100 * block + seed, most=many(250, 3000))
        assert_answer_is_best(
            _on(case, replace(case.problem, cluster=divided(case.problem.cluster, draw))),
            turn,
            seen,
        )
    assert seen["members"] > 15


def _on(case: Case, problem: Problem) -> Case:
    return replace(case, problem=problem)
