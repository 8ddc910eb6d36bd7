"""Comparisons: every strategy on every cluster, and what training costs there."""

import json
import re
from dataclasses import replace

import pytest

import shardwright
from shardwright.api.compare_strategies_and_clusters import compare
from shardwright.cli.main import run
from shardwright.cli.parsing.parse_memory_and_cost import read_prices, read_tokens
from shardwright.errors import InfeasibleError, UsageError
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS, accelerator_names
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.catalog.list_prices import (
    DEVICE_PRICES,
    INSTANCE_PRICES,
    NOT_RENTED,
    cluster_prices,
    list_price,
)
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.search.search_request import Request
from tests.registries import place, require_members

PRICES = place("src/shardwright/hardware/catalog/list_prices.py")
PINS = (
    ("tp", ("2",)),
    ("cp", ("1",)),
    ("pp", ("1",)),
    ("mbs", ("1",)),
    ("zero", ("1",)),
    ("recompute", ("none",)),
    ("offload", ("0",)),
)
REQUEST = Request(model="llama-2-7b", cluster="", seq_len=4096, global_batch=32, pins=PINS)


def test_every_strategy_on_every_cluster() -> None:
    rows = compare(
        REQUEST,
        clusters=("h100-sxm:8", "aws-p4de.24xlarge:2"),
        strategies=("tp2 zero1", "tp4 zero1"),
        tokens=3e9,
    )
    assert [
        (row.simulation.request.cluster, row.simulation.grid.tp, row.simulation.grid.dp)
        for row in rows
        if row.simulation.grid
    ] == [
        ("h100-sxm:8", 2, 4),
        ("h100-sxm:8", 4, 2),
        ("aws-p4de.24xlarge:2", 2, 8),
        ("aws-p4de.24xlarge:2", 4, 4),
    ]
    for row in rows:
        alone = shardwright.simulate(row.simulation.request, strategy=row.simulation.name)
        assert alone == row.simulation.prediction
        steps = 3e9 / (REQUEST.seq_len * REQUEST.global_batch)
        assert row.seconds == pytest.approx(steps * alone.step_time_s)
        assert row.usd_per_hour is not None
        assert row.usd == pytest.approx(row.usd_per_hour * steps * alone.step_time_s / 3600)
        assert row.usd_per_token == pytest.approx(row.usd / 3e9)
    assert [row.devices for row in rows] == [8, 8, 16, 16]
    assert rows[-1].usd_per_hour == pytest.approx(2 * 27.44705)


def test_without_strategies_the_best_plans_are_compared() -> None:
    clusters = ("h100-sxm:8", "mi250x:8")
    rows = compare(REQUEST, clusters=clusters)
    for row, cluster in zip(rows, clusters, strict=True):
        answer = shardwright.plan(replace(REQUEST, cluster=cluster))
        assert (row.simulation.grid, row.simulation.prediction) == (answer.grid, answer.prediction)
    assert (rows[1].prices, rows[1].usd_per_hour, rows[1].usd_per_token) == ((), None, None), (
        "no list price is known"
    )


def test_an_error_names_its_cluster() -> None:
    with pytest.raises(InfeasibleError) as raised:
        compare(
            replace(REQUEST, pins=(("tp", ("1",)), ("zero", ("0",)))),
            clusters=("h100-sxm:2", "t4:2"),
        )
    assert raised.value.message.startswith("t4:2: nothing fits")


def test_prices_are_of_things_that_are_there() -> None:
    assert set(INSTANCE_PRICES) <= set(instance_names())
    assert {name for name, _ in DEVICE_PRICES} <= set(accelerator_names())
    for price in (*INSTANCE_PRICES.values(), *(price for _, price in DEVICE_PRICES)):
        assert 0.1 < price.usd_per_hour < 20, (
            f"{price.of}: {price.usd_per_hour} dollars for one device-hour, in {PRICES}: expected"
            " between 0.1 and 20 (`usd_per_hour` is of the machine, with `devices` devices)"
        )
        assert re.search(r"commit [0-9a-f]{7}|20[0-9]{2}", price.source), (
            f"{price.of}: name the year of the price, or `commit` and its digits, in {PRICES}"
        )
    for name, price in INSTANCE_PRICES.items():
        kind = find_instance(name)
        assert kind is not None
        assert list_price(kind) is price


def test_every_accelerator_that_is_rented_in_public_has_a_price() -> None:
    without = {device.name for device in ACCELERATORS if list_price(default_node(device)) is None}
    require_members(
        NOT_RENTED,
        without,
        f"DEVICE_PRICES in {PRICES} with their list prices, or to NOT_RENTED of the same file",
    )
    assert without >= NOT_RENTED, f"remove {NOT_RENTED - without} from NOT_RENTED in {PRICES}"


def test_the_nearest_price_counts() -> None:
    node = parse_cluster("h100-sxm:8").node
    cheapest = list_price(node)
    assert cheapest is not None
    assert (cheapest.of, cheapest.usd_per_hour) == ("nebius gpu-h100-sxm", 2.95)
    assert list_price(parse_cluster("gcp-a3-megagpu-8g:1").node) is None, (
        "an instance has its own price or none"
    )
    mixed = parse_cluster("h100-sxm:8+aws-p4d.24xlarge:1")
    assert [p.usd_per_hour for p in cluster_prices(mixed, {})] == [2.95, 21.957642 / 8]
    given = read_prices(["2.5", "A100_SXM_40GB=1", "aws-p5.48xlarge=3"])
    assert given == {"": 2.5, "a100-sxm-40gb": 1.0, "aws-p5.48xlarge": 3.0}
    assert [p.usd_per_hour for p in cluster_prices(mixed, given)] == [2.5, 1.0]
    assert cluster_prices(parse_cluster("h100-sxm:8+mi250x:8"), {}) == ()


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0.0), ("15T", 15e12), ("300b", 3e11), ("2.5M", 2.5e6), ("1e12", 1e12), ("10_000", 1e4)],
)
def test_tokens(text: str, count: float) -> None:
    assert read_tokens(text) == count


@pytest.mark.parametrize("text", ["many", "T", "-1B", "0", "1e40", "nan", "inf"])
def test_no_tokens(text: str) -> None:
    with pytest.raises(UsageError, match="no number of tokens"):
        read_tokens(text)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("cheap", "no price"),
        ("h100-sxm=", "no price"),
        ("-1", "no price"),
        ("h1000=2", "unknown acc"),
    ],
)
def test_no_prices(word: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read_prices([word])


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "llama-2-7b",
        "h100-sxm:8",
        "--seq-len",
        "4096",
        "--global-batch",
        "32",
        "--strategy",
        "tp2 zero1",
    ]
    assert run([*words, "--strategy", "tp4 zero1", "--price", "2", "--tokens", "1T", "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert [(row["usd_per_hour"], row["tokens"], row["prices"][0]["source"]) for row in costs] == [
        (16.0, 1e12, "as given")
    ] * 2
    assert run([*words, "--json"]) == 0
    assert [row["cluster"] for row in json.loads(capsys.readouterr().out)["costs"]] == [words[2]]
    assert run([*words[:3], "mi300x:8", *words[3:], "--quiet"]) == 0
    assert capsys.readouterr().out.split("\t")[1].startswith("tp2 dp4 mbs1 zero1 recompute=none")
