"""The ways in which groups along an axis may lie are those of its true groups, listed device by
device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_of_device_list import span_of_devices
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    all_alike,
    move_seconds,
    spans_along,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    network_of as network_of_cluster,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.hardware.link_and_network_tier import Tier
from tests.tiers import examples

AXES = ("tp", "ulysses", "ring", "dp", "pp")
CHOSEN = {
    "tp": ("tp",),
    "ulysses": ("ulysses",),
    "ring": ("ring",),
    "tp-cp": ("tp", "ulysses", "ring"),
    "pp": ("pp",),
}


def network_of(units: tuple[int, ...]) -> Network:
    tiers = tuple(
        Tier(name=str(unit), num_devices=unit, bandwidth=1e9, latency_s=1e-6) for unit in units
    )
    return Network(tiers=tiers, units=equal_units(units), in_network_reduction=False)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int]]:
    """Degrees, and the stride of each axis in some order; Ulysses lies inside the ring."""
    degrees = {axis: draw(st.sampled_from((1, 2, 3, 4, 6))) for axis in AXES}
    strides, below = {}, 1
    for axis in draw(st.permutations(("tp", "cp", "dp", "pp"))):
        for part in ("ulysses", "ring") if axis == "cp" else (axis,):
            strides[part] = below
            below *= degrees[part]
    return degrees, strides


@examples(25, 500)
@given(mesh=meshes(), units=st.sampled_from(((4,), (6,), (8,), (4, 12), (8, 32))))
def test_every_group_lies_in_one_of_the_ways(
    mesh: tuple[dict[str, int], dict[str, int]], units: tuple[int, ...]
) -> None:
    degrees, strides = mesh
    columns = {
        **{axis: degrees[axis] for axis in ("tp", "ulysses", "dp", "pp")},
        "cp": degrees["ulysses"] * degrees["ring"],
    }
    columns |= {
        "s_tp": strides["tp"],
        "s_cp": strides["ulysses"],
        "s_dp": strides["dp"],
        "s_pp": strides["pp"],
    }
    columns |= {"sp": 1, "ep": 1, "etp": 1}
    rows = DegreeRows(columns={name: np.array([value]) for name, value in columns.items()})
    network = network_of((*units, 10**6))
    for axis, chosen in CHOSEN.items():
        ways = {
            tuple(int(count[0]) for count in span.below)
            for span in spans_along(axis, rows, network)
        }
        steps = [
            sum(i * strides[a] for i, a in zip(place, chosen, strict=True))
            for place in product(*(range(degrees[a]) for a in chosen))
        ]
        rest = [a for a in AXES if a not in chosen]
        found = set()
        for place in product(*(range(degrees[a]) for a in rest)):
            first = sum(i * strides[a] for i, a in zip(place, rest, strict=True))
            span = span_of_devices(
                tuple(first + step for step in steps), network.tiers, units=network.units
            )
            found.add(tuple(int(count[0]) for count in span.below))
        assert found <= ways, axis
        if axis in ("tp", "ulysses", "ring") and all_alike(rows, network)[0]:
            assert found == ways


@pytest.mark.parametrize("text", ["h100-sxm:64", "a100-sxm-80gb:64", "gb200-nvl72:216"])
@pytest.mark.parametrize("kind", list(Collective))
def test_a_group_that_does_not_fill_its_last_node_costs_what_full_ones_do(
    text: str, kind: Collective
) -> None:
    """Of 41 to 64 devices on nodes of 8 each group costs what those of whole nodes just below and
    above cost, or between."""
    cluster = parse_cluster(text)
    island = cluster.node.island
    own = network_of_cluster(cluster)

    def seconds(devices: int, volume: float) -> float:
        span = span_of_devices(
            tuple(range(devices)),
            own.tiers,
            units=own.units,
            in_network_reduction=own.in_network_reduction,
        )
        return float(move_seconds(kind, volume=np.array([volume]), span=span, network=own)[0])

    for volume in (1e4, 1e7, 1e9):
        for devices in range(island + 1, 3 * island + 1, max(island // 8, 1)):
            ends = [
                seconds(whole * island, volume)
                for whole in (devices // island, -(-devices // island))
            ]
            if devices // island > 1:
                assert (
                    min(ends) * (1 - 1e-9) <= seconds(devices, volume) <= max(ends) * (1 + 1e-9)
                ), (devices, volume)
