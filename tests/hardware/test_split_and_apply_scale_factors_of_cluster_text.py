"""Scale factors behind a cluster's text: they multiply one quantity, and text and factors repeat
each other."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.read_cluster_inventories_or_compute_picture import show_cluster
from shardwright.api.request_to_problem import load_cluster
from shardwright.errors import ClusterError
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    MAX_FACTOR,
    SCALED,
    factors_text,
    multiply_factor,
    split_scale_factors,
)
from tests.tiers import FEWEST, examples

FILE = "name: mine\nnodes:\n  - {accelerator: h100-sxm, count: 2, dollars_per_device_hour: 2}\n"
PAIR = "h100-sxm:8@east+a100-sxm-80gb:8@west,east~west=25gbps/60ms"
FACTORS = st.decimals(min_value="0.000000001", max_value=int(MAX_FACTOR), places=9)
BASES = ("h100-sxm:64", PAIR, "cluster.yaml", "a,b.yml", "meta-24k-roce:16384")


@pytest.mark.parametrize("text", ["h100-sxm:64", PAIR])
def test_factors_multiply_one_quantity_each(text: str) -> None:
    plain = load_cluster(text)
    scaled = load_cluster(f"{text}, network=0.5x,MEMORY=2X,price=3x")
    assert scaled.expression == f"{text},network=0.5x,memory=2x,price=3x"
    assert scaled.num_devices == plain.num_devices
    assert scaled.links == plain.links
    for before, after in zip(plain.groups, scaled.groups, strict=True):
        assert after.kind.nic.bandwidth == before.kind.nic.bandwidth / 2
        assert after.kind.scale_up == before.kind.scale_up
        assert after.kind.accelerator.memory_bytes == before.kind.accelerator.memory_bytes * 2
    assert scaled.groups[0].price == pytest.approx(3 * 2.95)


def test_factors_behind_a_file(tmp_path: Path) -> None:
    for ending in ("yaml", "json"):
        path = tmp_path / f"mine.{ending}"
        path.write_text(FILE)
        scaled = load_cluster(f"{path},memory=0.5x,price=2x")
        assert scaled.expression == "mine,memory=0.5x,price=2x"
        assert scaled.groups[0].price == 4
        plain = load_cluster(str(path))
        assert scaled.node.accelerator.memory_bytes == plain.node.accelerator.memory_bytes // 2
        assert show_cluster(f"{path},memory=0.5x,price=2x").cluster == scaled


def test_no_factor_changes_nothing() -> None:
    for text in ("h100-sxm:64", PAIR, FILE):
        assert split_scale_factors(text) == (text, {})
        assert load_cluster(text) == load_cluster(f"{text} ".strip())


@given(st.sampled_from(BASES), st.dictionaries(st.sampled_from(SCALED), FACTORS))
@examples(FEWEST)
def test_text_and_factors_repeat_each_other(base: str, factors: dict[str, Decimal]) -> None:
    again, found = split_scale_factors(base + factors_text(factors))
    assert again == base
    assert found == {name: factor for name, factor in factors.items() if factor != 1}


@given(
    st.sampled_from(BASES),
    st.sampled_from(SCALED),
    st.integers(1, 10**4),
    st.integers(1, 10**4),
)
@examples(FEWEST)
def test_factors_multiply(base: str, name: str, one: int, other: int) -> None:
    text = multiply_factor(
        multiply_factor(base, name=name, factor=one / 1000), name=name, factor=other / 1000
    )
    factors = split_scale_factors(text)[1]
    assert factors.get(name, Decimal(1)) == Decimal(one) * other / 10**6


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("h100-sxm:8,netwrk=2x", "no factor of that name", "network"),
        ("h100-sxm:8,network=2", "is no factor", "network=0.5x"),
        ("h100-sxm:8,memory=0x", "a factor 0", "above 0"),
        ("h100-sxm:8,memory=1001x", "a factor 1001", "at most 1000"),
        ("h100-sxm:8,memory=0.000000001x,memory=2x", "two factors", "one"),
        ("t4:1,memory=0.000000000x", "a factor", "above 0"),
        ("ascend-910b:8,price=2x", "no price of ascend-910b", "ascend-910b:8/2.5usd"),
        ("h100-sxm:8,price=900x", "900 times its price", "up to 1000"),
    ],
)
def test_wrong_factors(text: str, message: str, hint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_yaml_text_has_no_factors() -> None:
    with pytest.raises(ClusterError, match="YAML text has no scale factors"):
        multiply_factor(FILE, name="network", factor=2.0)
