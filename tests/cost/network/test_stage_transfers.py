"""Collectives around an edge's messages: a device's follow one another, those of other devices run
beside them."""

from __future__ import annotations

import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.network.stage_transfers import around_seconds
from tests.program.small import cluster_of, problem_of
from tests.strategies import dense_model

GATHER, REDUCE = Collective.ALL_GATHER, Collective.ALL_REDUCE
ALL = frozenset(range(8))
Group = tuple[Collective, tuple[int, ...], int]


def seconds(*collectives: Group, around: frozenset[int] = ALL) -> float:
    problem = problem_of(dense_model(), cluster_of(8, node=8))
    return around_seconds(problem, collectives, around, scale=2.0)


def test_groups_that_share_a_device_follow_one_another() -> None:
    near, far = (GATHER, (0, 1), 2**20), (GATHER, (1, 2), 2**22)
    assert seconds(near, far) == pytest.approx(seconds(near) + seconds(far), rel=1e-12)


def test_groups_of_other_devices_run_beside_them() -> None:
    near, far = (GATHER, (0, 1), 2**20), (GATHER, (2, 3), 2**22)
    assert seconds(near, far) == max(seconds(near), seconds(far)) == seconds(far)


def test_kinds_follow_one_another() -> None:
    one, other = (GATHER, (0, 1), 2**20), (REDUCE, (2, 3), 2**20)
    assert seconds(one, other) == pytest.approx(seconds(one) + seconds(other), rel=1e-12)


def test_only_devices_around_the_messages_count() -> None:
    near, far = (GATHER, (0, 1), 2**20), (GATHER, (1, 2), 2**22)
    assert seconds(near, far, around=frozenset({0})) == seconds(near)
