"""Mixed clusters beside their parts: `compare` plans both, `why` weighs another strategy, prices
that the cluster says count."""

from __future__ import annotations

import pytest

from shardwright.api.compare_strategies_and_clusters import compare
from shardwright.api.explain_why_not_other_strategy import why
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.hardware.catalog.list_prices import cluster_prices
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.search.grid.fate_of_grid import Fate
from shardwright.search.search_request import Request

MIXED, FASTER = "a100-sxm-40gb:2/3usd+v100-sxm-16gb:2/0.5usd", "a100-sxm-40gb:2/3usd"
REQUEST = Request(
    model="examples/tiny.json", cluster=MIXED, seq_len=256, global_batch=16, precision="fp16"
)


def test_a_mixed_cluster_stands_beside_its_faster_part() -> None:
    mixed, faster = compare(REQUEST, clusters=(MIXED, FASTER))
    answer = plan_mixed(REQUEST)
    assert mixed.simulation.prediction.step_time_s == answer.step_time_s
    assert mixed.simulation.prediction.step_time_s <= faster.simulation.prediction.step_time_s * (
        1 + 1e-9
    )
    # The best plan leaves the slower node idle, and nodes that do nothing are not paid for; those
    # that do something are paid for whole.
    assert answer.simulation is not None
    assert answer.simulation.prediction.devices <= 2
    assert (mixed.usd_per_hour, faster.usd_per_hour) == (2 * 3, 2 * 3)


def test_prices_of_the_cluster_stand_before_list_prices_and_behind_given_ones() -> None:
    cluster = parse_cluster("h100-sxm:8@east/2usd+h100-sxm:8@west/1usd,east~west=10gbps/0ms")
    prices = cluster_prices(cluster, {})
    assert [(p.usd_per_hour, p.source) for p in prices] == [
        (2.0, "as the cluster says, in east"),
        (1.0, "as the cluster says, in west"),
    ]
    assert [p.usd_per_hour for p in cluster_prices(cluster, {"h100-sxm": 4.0})] == [4.0, 4.0]
    assert [
        p.usd_per_hour for p in cluster_prices(parse_cluster("h100-sxm:8/2usd+h100-sxm:4"), {})
    ] == [2.0, 2.95]


@pytest.mark.parametrize(
    ("strategy", "fate"), [("tp2 dp2 zero1 mbs2", Fate.UNSEARCHED), ("tp3 dp1", Fate.ILLEGAL)]
)
def test_another_strategy_is_weighed_against_a_mixed_plan(strategy: str, fate: Fate) -> None:
    answer = plan_mixed(REQUEST)
    found = why(answer, strategy)
    assert found.placed.fate is fate
    if found.other is not None:
        assert found.placed.reason == "the mixed space has other strategies"
        assert found.other.prediction.step_time_s >= answer.certificate.lower_bound_s
