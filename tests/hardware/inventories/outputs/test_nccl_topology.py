"""NCCL's topologies: dumps with devices and cards, and files of clouds that have PCI functions
alone."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.node_facts import DeviceLinks, FactKind, PciePaths, SeenNode
from tests.hardware.inventory_files import HGX_H100, SWITCHED, nccl_card, nccl_gpu, nccl_xml


def node_of(text: str) -> SeenNode:
    (node,) = read_inventory(text, name="t.xml").samples
    return node


def values(node: SeenNode) -> dict[FactKind, object]:
    return {fact.what: fact.value for fact in node.facts if fact.what is not FactKind.NEAR}


def test_a_node_with_switches() -> None:
    assert values(node_of(HGX_H100)) == {
        FactKind.DEVICES: 8,
        FactKind.PRODUCT: "pci 10de:2330",
        FactKind.COMPUTE: 90,
        FactKind.PCIE: 64e9,
        FactKind.ISLANDS: (8,),
        FactKind.LINKS: DeviceLinks(18, 18),
        FactKind.NICS: 8,
        FactKind.NIC_RATE: 50e9,
    }


def pair(peer: int) -> str:
    return f'<nvlink target="0000:{16 + peer:02x}:00.0" count="12" tclass="0x030200"/>'


def test_pairs_on_four_processors_and_a_card_that_both_list() -> None:
    """Virtual machines say no speed of slots, and a card that belongs to no slot under each
    processor."""
    gpus = [nccl_gpu(n, links=pair(n ^ 1), sm=80, device="0x20b5", speed="") for n in range(4)]
    card = (
        '<nic><net name="eth0" dev="0" speed="100000" port="0" latency="0.000000" guid="0x0"'
        ' maxconn="65536" gdr="0"/></nic>'
    )
    text = (
        '<system version="1">'
        + "".join(f'<cpu numaid="{n}">{gpu}{card}</cpu>' for n, gpu in enumerate(gpus))
        + "</system>"
    )
    assert values(node_of(text)) == {
        FactKind.DEVICES: 4,
        FactKind.PRODUCT: "pci 10de:20b5",
        FactKind.COMPUTE: 80,
        FactKind.ISLANDS: (2, 2),
        FactKind.LINKS: DeviceLinks(12, 12),
        FactKind.PATHS: PciePaths(switches=(1, 1, 1, 1), processors=(1, 1, 1, 1)),
        FactKind.NICS: 1,
        FactKind.NIC_RATE: 12.5e9,
    }


def test_devices_without_links_and_cards_of_storage() -> None:
    groups = [
        nccl_gpu(0, links="", sm=89, device="0x26b9", speed="16.0 GT/s PCIe")
        + nccl_card(0, speed=200000),
        nccl_card(1, speed=10000),
    ]
    found = values(node_of(nccl_xml(groups)))
    assert (
        found[FactKind.ISLANDS],
        found[FactKind.NICS],
        found[FactKind.NIC_RATE],
        found[FactKind.PCIE],
    ) == (
        (1,),
        1,
        25e9,
        32e9,
    )
    assert FactKind.LINKS not in found


def test_a_rack_in_one_dump() -> None:
    text = nccl_xml(
        [nccl_gpu(n, links=SWITCHED, sm=100, device="0x2941") for n in range(4)],
        hosts=[f"0x{n}" for n in range(18)],
    )
    node = node_of(text)
    found = values(node)
    assert (found[FactKind.DEVICES], found[FactKind.ISLANDS], found[FactKind.DOMAIN_NODES]) == (
        4,
        (4,),
        18,
    )
    assert node.guesses == ((FactKind.NODES, 18, "hosts in t.xml"),)


def functions(kind: str, more: str) -> str:
    return (
        "".join(
            f'<pci busid="0000:{n:02x}:00.0" {kind} link_speed="16 GT/s" link_width="16"/>'
            for n in range(2)
        )
        + more
    )


def test_files_of_clouds_have_functions_of_a_class_alone() -> None:
    card = '<pci busid="0000:40:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>'
    devices = functions('class="0x030200"', card)
    switch = f'<pci busid="ffff:ff:01.0" class="0x060400">{devices}</pci>'
    found = values(
        node_of(f'<!-- a remark --><system version="1"><cpu numaid="0">{switch}</cpu></system>')
    )
    assert found == {FactKind.DEVICES: 2, FactKind.PCIE: 32e9, FactKind.NICS: 1}


def test_functions_without_a_class_are_a_guess() -> None:
    node = node_of(
        '<system version="1"><cpu numaid="0"><pci'
        f' busid="0000:45:00.0">{functions("", "")}</pci></cpu></system>'
    )
    assert values(node) == {}
    assert [(what, value) for what, value, _ in node.guesses] == [(FactKind.NICS, 2)]


BAD = {
    "a graph": ('<graphs version="1"><graph id="0"/></graphs>', "<graphs> is no topology of NCCL"),
    "two models": (HGX_H100.replace("0x2330", "0x20b2", 1), "devices of 2 models in a node"),
    "no count": (HGX_H100.replace('count="9"', 'count="-9"', 1), "count is '-9'"),
    "no speed": (HGX_H100.replace('speed="400000"', 'speed="1e9"', 1), "speed is '1e9'"),
    "cut": (HGX_H100[:-20], "t.xml:"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_topology_is_refused(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(ClusterError, match=message):
        node_of(text)


def test_hosts_with_different_numbers_of_devices_are_refused() -> None:
    whole = nccl_xml([nccl_gpu(n, links="", sm=90, device="0x2330") for n in range(2)], hosts=["a"])
    half = nccl_xml([nccl_gpu(0, links="", sm=90, device="0x2330")], hosts=["b"])
    with pytest.raises(ClusterError, match="2 devices on host a, and 1 on host b"):
        node_of(whole.replace("</system>\n", "") + half.partition("\n")[2])
