"""PCIe paths inside a node: which devices share a switch, which a processor, and what the planner
makes of it."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.node_facts import DeviceLinks, FactKind, PciePaths
from tests.hardware.inventories.test_cluster_from_inventories import read, words_of
from tests.hardware.inventory_files import nccl_gpu, rocm_topology, topo_matrix, xgmi_gpu


def node_of(text: str, **given: str) -> NodeKind:
    return read(text, **given).cluster.node


def fabric(a: int, b: int) -> str:
    """Two processors of two PCIe switches with two devices each."""
    return "PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS"


def test_a_switch_a_processor_and_the_link_between_two_are_levels_of_their_own() -> None:
    island, processor, sockets = node_of(
        topo_matrix(8, fabric), accelerator="a100-pcie-80gb"
    ).inner_levels
    assert [(level.name, level.num_devices) for level in (island, processor, sockets)] == [
        ("island", 2),
        ("processor", 4),
        ("sockets", 8),
    ]
    # One slot of PCIe 4 has 32 GB/s; its two devices share a slot's worth into the processor, and
    # four share 10 GB/s to the other.
    assert island.bandwidth == 0.625 * 32e9
    assert processor.bandwidth == pytest.approx(0.3 * 32e9 / 2)
    assert sockets.bandwidth == pytest.approx(10e9 / 4)


def test_a_path_that_all_devices_share_is_no_tier() -> None:
    for way in ("NODE", "PHB", "SYS"):
        node = node_of(topo_matrix(8, lambda a, b, way=way: way), accelerator="l40s")
        assert (node.island, node.node_tiers) == (8, ())
    below_one_switch = node_of(topo_matrix(4, lambda a, b: "PXB"), accelerator="a100-pcie-80gb")
    assert (
        below_one_switch.island,
        below_one_switch.node_tiers,
        below_one_switch.scale_up.efficiency,
    ) == (4, (), 0.625)


def test_pairs_with_nvlink_reach_each_other_over_pcie_not_over_the_cards() -> None:
    node = node_of(
        topo_matrix(4, lambda a, b: "NV12" if a // 2 == b // 2 else "SYS"),
        accelerator="a100-pcie-80gb",
    )
    assert (node.island, node.scale_up.bandwidth) == (2, 300e9)
    assert [(tier.name, tier.num_devices, tier.link.bandwidth) for tier in node.node_tiers] == [
        ("sockets", 4, 10e9)
    ]


def test_units_that_are_not_equal_take_the_slower_path_and_are_listed() -> None:
    found = read(topo_matrix(4, lambda a, b: "SYS" if 3 in (a, b) else "NODE"), accelerator="l40s")
    assert found.cluster.node.node_tiers == ()
    assert "assumed devices of a processor: not told apart" in words_of(found)


def test_devices_of_a_switch_that_are_not_neighbours_are_told_in_the_planned_order() -> None:
    found = read(
        topo_matrix(
            8, lambda a, b: "PIX" if a % 4 == b % 4 else "NODE" if a % 2 == b % 2 else "SYS"
        ),
        accelerator="a100-pcie-80gb",
    )
    assert [level.num_devices for level in found.cluster.node.inner_levels] == [2, 4, 8]
    (order,) = [one for one in found.kinds[0].found if one.what is FactKind.ORDER]
    assert "CUDA_VISIBLE_DEVICES=0,4,2,6,1,5,3,7 " in order.words
    assert "order of devices" not in " ".join(
        words_of(read(topo_matrix(8, fabric), accelerator="a100-pcie-80gb"))
    )


def test_what_was_measured_over_the_whole_node_is_the_link_between_processors() -> None:
    node = node_of(
        topo_matrix(8, lambda a, b: "NODE" if a // 4 == b // 4 else "SYS"), accelerator="l40s"
    )
    (sockets,) = node.node_tiers
    assert sockets.link.achieved == pytest.approx(2e9, rel=0.05)


def dump(vendor: str, model: int) -> str:
    """Two processors of two devices each, below ports of their own."""
    cpus = ""
    for cpu in range(2):
        gpus = "".join(
            nccl_gpu(n, links="", sm=80, device="0x20f1", speed="16.0 GT/s PCIe")
            for n in (2 * cpu, 2 * cpu + 1)
        )
        family = 6 if vendor == "GenuineIntel" else 25
        cpus += (
            f'<cpu numaid="{cpu}" arch="x86_64" vendor="{vendor}" familyid="{family}"'
            f' modelid="{model}">{gpus}</cpu>'
        )
    return f'<system version="1">{cpus}</system>'


@pytest.mark.parametrize(
    ("vendor", "model", "rate"),
    [
        ("GenuineIntel", 0x4F, 6e9),
        ("GenuineIntel", 0x6A, 10e9),
        ("GenuineIntel", 0x8F, 22e9),
        ("GenuineIntel", 0xCF, 40e9),
        ("AuthenticAMD", 1, 16e9),
    ],
)
def test_the_link_between_processors_is_nccls_figure_of_that_processor(
    vendor: str, model: int, rate: float
) -> None:
    node = node_of(dump(vendor, model))
    assert node.island == 2
    assert [(tier.num_devices, tier.link.bandwidth) for tier in node.node_tiers] == [(4, rate)]


def test_a_link_between_two_switches_joins_their_devices() -> None:
    def below(bus: str, number: int, target: str) -> str:
        link = f'<pcilink target="{target}"/>'
        return (
            f'<pci busid="{bus}" class="0x060400"'
            f' vendor="0x1000">{link}{nccl_gpu(number, links="", sm=80, device="0x20f1")}</pci>'
        )

    one, other = "0000:90:00.0", "0000:91:00.0"
    text = (
        '<system version="1"><cpu'
        f' numaid="0">{below(one, 0, other)}{below(other, 1, one)}</cpu></system>'
    )
    (node,) = read_inventory(text, name="t").samples
    paths = node.fact(FactKind.PATHS)
    assert paths is not None
    assert paths.value == PciePaths(switches=(2,), processors=(2,))


def rccl(devices: int, more: str = "") -> str:
    gpus = "".join(
        xgmi_gpu(n, peers=[m for m in range(devices) if m != n], more=more if n == 1 else "")
        for n in range(devices)
    )
    return (
        '<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23"'
        f' modelid="49">{gpus}</cpu></system>'
    )


def test_xgmi_links_join_devices() -> None:
    for devices in (4, 8):
        (sample,) = read_inventory(rccl(devices), name="x.xml").samples
        found = {fact.what: fact.value for fact in sample.facts}
        assert (found[FactKind.ISLANDS], found[FactKind.XGMI]) == (
            (devices,),
            DeviceLinks(1, devices - 1),
        )
        # Seven links of 64 GB/s; four devices have three of them in use.
        node = node_of(rccl(devices))
        assert (node.island, node.scale_up.bandwidth) == (devices, (devices - 1) * 64e9)


def test_an_element_of_a_device_that_is_not_known_is_refused_by_name() -> None:
    text = rccl(4, more='<ualink target="0000:10:00.0" count="4"/>')
    with pytest.raises(
        ClusterError, match=r"x.xml:1: <ualink> in <gpu> is no element that is read"
    ):
        read_inventory(text, name="x.xml")


def test_what_is_no_link_and_not_known_is_listed() -> None:
    gone = '<xgmi target="0000:99:00.0" count="1" tclass="0x120000"/>'
    found = read_inventory(
        rccl(4, more=gone).replace('gdr="1"', 'gdr="1" fabric="2"', 1), name="x.xml"
    )
    assert [str(note.value) for note in found.notes] == [
        "fabric= of <gpu>",
        "<xgmi> to 0000:99:00.0, a device that the file has not",
    ]


def test_a_matrix_of_rocm() -> None:
    whole = read(rocm_topology(8, lambda a, b: "XGMI", series="AMD Instinct MI300X OAM"))
    assert (whole.cluster.node.accelerator.name, whole.cluster.node.island) == ("mi300x", 8)
    halves = node_of(
        rocm_topology(8, lambda a, b: "XGMI" if a // 4 == b // 4 else "PCIE"), accelerator="mi250x"
    )
    assert (halves.island, [tier.name for tier in halves.node_tiers]) == (4, ["sockets"])
    odd = rocm_topology(4, lambda a, b: "XGMI" if a % 2 == b % 2 else "PCIE", numa=lambda n: n % 2)
    assert any(
        "HIP_VISIBLE_DEVICES" in one.words for one in read(odd, accelerator="mi250x").kinds[0].found
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rocm_topology(4, lambda a, b: "HT"), "'HT' is no way in which devices are joined"),
        (
            rocm_topology(4, lambda a, b: "XGMI" if a < b else "PCIE"),
            "GPU0 and GPU1 are joined by XGMI in t:.*, and by PCIE",
        ),
        (
            rocm_topology(4, lambda a, b: "XGMI").replace("GPU3   XGMI", "GPU9   XGMI"),
            "no row of GPU3",
        ),
    ],
)
def test_what_is_no_matrix_of_rocm_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read_inventory(text, name="t")


def links(down: dict[int, int], most: int = 18) -> str:
    return topo_matrix(8, lambda a, b: f"NV{most - max(down.get(a, 0), down.get(b, 0))}")


def test_a_device_with_fewer_links_to_the_switch_is_named() -> None:
    with pytest.raises(
        ClusterError, match=r"t:1: GPU3 has 17 of 18 NVLinks to the switch: a link of GPU3 is down"
    ) as caught:
        read_inventory(links({3: 1}), name="t")
    assert "nvidia-smi nvlink -s" in caught.value.hint
    with pytest.raises(
        ClusterError,
        match=(
            r"GPU1 has 16 of 18 .* GPU6 has 17 of 18 NVLinks to the switch: links of GPU1, GPU6 are"
            r" down"
        ),
    ):
        read_inventory(links({1: 2, 6: 1}), name="t")
    switched = '<nvlink target="fffffff:ff:ff.0" count="{}" tclass="0x068000"/>'
    gpus = "".join(
        nccl_gpu(n, links=switched.format(17 if n == 2 else 18), sm=90, device="0x2330")
        for n in range(4)
    )
    with pytest.raises(ClusterError, match="GPU2 has 17 of 18 NVLinks to the switch"):
        read_inventory(f'<system version="1"><cpu>{gpus}</cpu></system>', name="t.xml")
