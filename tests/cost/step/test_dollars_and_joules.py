"""What a step costs: nodes are paid whole, prices count where they are stated, and energy is that
of devices that work."""

from __future__ import annotations

import pytest

import shardwright
from shardwright.cost.step.dollars_and_joules import (
    paid_devices,
    spending_at_prices,
    spending_of,
    usd_per_hour,
)
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request
from shardwright.units import GIGA

MIXED = parse_cluster("a100-sxm-40gb:16/2usd+v100-sxm-16gb:8/0.5usd")


def test_a_node_with_any_device_that_works_is_paid_whole() -> None:
    assert paid_devices(MIXED, range(9)) == ((16, 0), (9, 0))
    assert paid_devices(MIXED, (0, 16)) == ((8, 8), (1, 1))
    assert paid_devices(MIXED, range(8, 20)) == ((8, 8), (8, 4))


def test_a_step_costs_its_seconds_of_the_paid_nodes_and_its_egress() -> None:
    found = spending_of(MIXED, range(8, 20), seconds=1800.0, tokens=1e6, egress_usd=0.25)
    assert found.usd_per_hour == 8 * 2 + 8 * 0.5
    assert found.usd == 10.25
    assert found.usd_per_billion_tokens == pytest.approx(10.25e3)
    assert found.joules == 1800.0 * (8 * 400 + 4 * 300)


def test_a_group_without_a_price_matters_only_where_it_is_used() -> None:
    cluster = parse_cluster("a100-sxm-40gb:8/2usd+v100-sxm-16gb:8")
    assert spending_of(cluster, range(8), seconds=1.0, tokens=1.0).usd_per_hour == 16
    both = spending_of(cluster, range(9), seconds=1.0, tokens=1.0)
    assert (both.usd_per_hour, both.usd, both.usd_per_billion_tokens) == (None, None, None)
    again = spending_at_prices(both, (2.0, 0.0), seconds=3600.0, tokens=GIGA)
    assert (again.usd, again.usd_per_billion_tokens) == (16.0, 16.0), (
        "a price of 0 that is given is one"
    )
    assert usd_per_hour((0, 8), (None, 1.0)) == 8


def test_energy_is_said_of_devices_whose_limit_is_listed() -> None:
    assert (
        spending_of(parse_cluster("h100-sxm:8"), range(4), seconds=2.0, tokens=1.0).joules
        == 2.0 * 4 * 700
    )
    assert spending_of(parse_cluster("tpu-v5p:4"), range(4), seconds=2.0, tokens=1.0).joules is None


def test_bytes_between_zones_are_paid_by_the_gigabyte() -> None:
    """A ring of four over two zones crosses them twice with three quarters of the sum, and of the
    gather."""
    model = load_model("llama-2-7b")
    zones = "a100-sxm-40gb:8@east/2usd+a100-sxm-40gb:8@west/1usd,east~west=25gbps/30ms/{}usd"
    found = []
    for egress in (0.02, 0.04):
        request = Request(
            model="llama-2-7b",
            cluster=zones.format(egress),
            seq_len=2048,
            global_batch=32,
            precision="fp16",
        )
        spending = shardwright.simulate(request, strategy="tp4 zero1").spending
        assert spending is not None
        found.append(spending)
    wire = model.num_parameters * (4 + 2)
    assert found[0].egress_usd == pytest.approx(1.5 * wire * 0.02 / GIGA, rel=0.001)
    assert found[1].egress_usd == pytest.approx(2 * found[0].egress_usd)
    assert found[0].usd_per_hour == 8 * 2 + 8 * 1
