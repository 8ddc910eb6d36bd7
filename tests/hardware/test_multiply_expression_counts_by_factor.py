"""An expression with multiplied counts names a cluster with as many times the devices."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.multiply_expression_counts_by_factor import multiply_counts


@pytest.mark.parametrize(
    "expression",
    [
        "h100-sxm:64",
        "8 x H100",
        "4x8xA100",
        "aws-p5.48xlarge:16",
        "meta-24k-roce:4096",
        "h100-sxm:64@east/2.5usd+a100-sxm-80gb:32@west/1.2usd,east~west=25gbps/60ms/0.02usd",
        "v5p-256:4",
    ],
)
@pytest.mark.parametrize("factor", [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2)])
def test_devices_are_multiplied(expression: str, factor: Fraction) -> None:
    before = parse_cluster(expression)
    after = parse_cluster(multiply_counts(expression, factor=factor))
    assert after.num_devices == before.num_devices * factor
    assert after.links == before.links
    assert [group.price for group in after.groups] == [group.price for group in before.groups]


@pytest.mark.parametrize("expression", ["h100-sxm:3", "v5p-256", "dgx-superpod-h100"])
def test_products_that_are_none(expression: str) -> None:
    with pytest.raises(ClusterError, match=r"no whole number|has no count"):
        multiply_counts(expression, factor=Fraction(1, 2))
