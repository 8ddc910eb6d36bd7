"""nvidia-smi topo -m: devices, islands, NVLinks and the cards that count."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.node_facts import DeviceLinks, FactKind
from tests.hardware.inventory_files import topo_matrix

EACH = [[n] for n in range(8)]
CASES = {
    # devices, link, cards -> islands, links, cards that count
    "HGX H100 with two cards of storage": (
        8,
        lambda a, b: "NV18",
        [*EACH, [], []],
        (8,),
        DeviceLinks(18, 18),
        8,
    ),
    "DGX A100 with two cards a switch": (
        8,
        lambda a, b: "NV12",
        [[n, n + 1] for n in (0, 0, 2, 2, 4, 4, 6, 6)],
        (8,),
        DeviceLinks(12, 12),
        8,
    ),
    "A100 PCIe in pairs": (
        4,
        lambda a, b: "NV12" if a // 2 == b // 2 else "SYS",
        [[0, 1]],
        (2, 2),
        DeviceLinks(12, 12),
        1,
    ),
    "a mesh of four": (4, lambda a, b: "NV4", [], (4,), DeviceLinks(4, 12), 0),
    "a hybrid cube mesh": (
        8,
        lambda a, b: {1: "NV2", 2: "NV1", 3: "NV1", 4: "NV2"}.get((a - b) % 8, "SYS"),
        [],
        (8,),
        None,
        0,
    ),
    "L40S": (8, lambda a, b: "NODE" if a // 4 == b // 4 else "SYS", [[], []], (1,) * 8, None, 2),
    "one device": (1, lambda a, b: "X", [], (1,), None, 0),
}


@pytest.mark.parametrize("gap", ["\t", "     "])
@pytest.mark.parametrize("name", CASES)
def test_a_node_is_read(name: str, gap: str) -> None:
    devices, link, cards, islands, links, counted = CASES[name]
    # both ways alike
    text = topo_matrix(devices, lambda a, b: link(max(a, b), min(a, b)), cards=cards, gap=gap)
    (node,) = read_inventory(text, name="topo.txt").samples
    found = {fact.what: fact.value for fact in node.facts}
    assert (found[FactKind.DEVICES], found[FactKind.ISLANDS], found.get(FactKind.NICS, 0)) == (
        devices,
        islands,
        counted,
    )
    if links is not None:
        assert found[FactKind.LINKS] == links
    assert all(fact.where.startswith("topo.txt:") for fact in node.facts)


def test_cards_keep_their_names_and_those_that_do_not_count_are_named() -> None:
    (node,) = read_inventory(
        topo_matrix(2, lambda a, b: "NV18", cards=[[0], [1], []]), name="t"
    ).samples
    near = node.fact(FactKind.NEAR)
    assert near is not None
    assert near.value == "mlx5_0 GPU0, mlx5_1 GPU1; beside none, not counted: mlx5_2"


WHOLE = topo_matrix(2, lambda a, b: "NV12", cards=[[0]])
BAD = {
    "two ways": (
        WHOLE.replace("GPU1\tNV12", "GPU1\tSYS"),
        "GPU0 and GPU1 are joined by NV12 in t:2, and by SYS in t:3",
    ),
    "a row lacks": ("\n".join(WHOLE.splitlines()[:2]), "no row of GPU1"),
    "cells lack": (
        WHOLE.replace("\t X \tNV12\tPIX\t0-47,96-143\t0\tN/A", "\t X "),
        "1 cells for 3 columns",
    ),
    "an unknown way": (WHOLE.replace("NV12", "WIFI", 1), "'WIFI' is no way"),
    "a name twice": (WHOLE.replace("\x1b[4mGPU1", "\x1b[4mGPU0"), "a header of 3 columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_matrix_is_refused(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(ClusterError, match=message):
        read_inventory(text, name="t")
