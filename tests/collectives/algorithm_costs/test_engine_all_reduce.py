"""Engines' own sums: which is cheapest where."""

from __future__ import annotations

import numpy as np

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import (
    CALL_NCCL,
    ENGINE_ALGORITHMS,
    ENGINES,
    LIBRARIES,
    algorithms_for,
)
from shardwright.collectives.cheapest_algorithm import price_list
from tests.collectives.spans import one_group

ISLAND = one_group((8,), bandwidth=(337e9,), latency_s=(1.3e-6,))
APART = one_group((8, 2), bandwidth=(337e9, 48e9), latency_s=(1.3e-6, 5e-6))


def cheapest(volume: float, *, library: str, apart: bool = False) -> str:
    prices = price_list(
        Collective.ALL_REDUCE,
        span=APART if apart else ISLAND,
        algorithms=algorithms_for(Collective.ALL_REDUCE, library=library),
    )
    return prices.algorithms[int(prices.seconds(np.array([volume]))[1][0])].name


def test_one_shot_then_two_shots_then_nccl() -> None:
    assert cheapest(2.0**12, library="vllm") == "one_shot"
    assert cheapest(2.0**21, library="vllm") == "two_shot"
    assert cheapest(2.0**28, library="vllm") == "nvlink_sharp"


def test_the_switch_sums_where_it_may() -> None:
    assert cheapest(2.0**21, library="vllm-multimem") == "multimem"


def test_groups_that_leave_the_island_are_nccls() -> None:
    for volume in (2.0**12, 2.0**21):
        assert cheapest(volume, library="vllm", apart=True) not in ENGINE_ALGORITHMS


def test_one_shot_is_read_and_added_by_all() -> None:
    (one,) = (
        a for a in algorithms_for(Collective.ALL_REDUCE, library="vllm") if a.name == "one_shot"
    )
    spent = one.seconds(Collective.ALL_REDUCE, volume=np.array([2.0**18]), span=ISLAND)
    np.testing.assert_allclose(spent, 3 * 1.3e-6 + 7 * 2.0**18 / 337e9)


def test_any_library_is_what_it_was() -> None:
    assert not set(LIBRARIES["any"]) & set(ENGINE_ALGORITHMS)
    assert set(ENGINES) <= set(CALL_NCCL)
