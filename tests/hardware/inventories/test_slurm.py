"""Slurm: lists of names, switches and blocks, and nodes."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.merge_inventories import named_nodes
from shardwright.hardware.inventories.node_facts import FactKind
from shardwright.hardware.inventories.outputs import slurm_topology_conf
from shardwright.hardware.inventories.outputs.slurm_hostlist import expand_hostlist
from shardwright.units import MIB
from tests.hardware.inventory_files import slurm_node


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("a[1-2,5],b7", ["a1", "a2", "a5", "b7"]),
        (
            "rack[1-2]node[1-2]-ib",
            ["rack1node1-ib", "rack1node2-ib", "rack2node1-ib", "rack2node2-ib"],
        ),
        ("switch.1.[9-10]", ["switch.1.9", "switch.1.10"]),
        ("gpu[3]", ["gpu3"]),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert list(expand_hostlist(text, where="f:1")) == names


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a[1-",
            "a]1[",
            "a[[1-2]]",
            "a[]",
            "a[1-2-3]",
            "a[5-2]",
            "a[x-y]",
            "a,,b",
            "a[-1]",
            "a[٣-٤]",
            "a" * 300,
        ),
        *("node[0-999999999]", "a[1-300]b[1-300]", "n[0-65535],m", "n[1-999999999999999999]"),
    ],
)
def test_what_is_no_list_or_too_long_a_one_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"f:1: "):
        expand_hostlist(text, where="f:1")


TREE = """\
# two spines
SwitchName=core Switches=spine[1-2]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf3  # one leaf
SwitchName=leaf1 Nodes=gpu[01-04] LinkSpeed=100
switchname=leaf2 nodes=gpu[05-08]
SwitchName=leaf3 Nodes=gpu[09-12]
"""
BLOCKS = "BlockName=rack1 Nodes=gpu[01-18]\nBlockName=rack2 Nodes=gpu[19-36]\nBlockSizes=18,36\n"


def test_switches_above_each_node() -> None:
    nodes = named_nodes([read_inventory(TREE, name="topology.conf")])
    assert len(nodes) == 12
    assert {node.name: node.above for node in nodes}["gpu10"] == ("leaf3", "spine2", "core")
    assert nodes[0].where == "topology.conf:5"


def test_many_long_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_topology_conf, "MAX_NAMES", 1000)
    with pytest.raises(ClusterError, match="t:2: more than 1,000 nodes and switches"):
        read_inventory("".join(f"SwitchName=s{n} Nodes=n{n}-[1-600]\n" for n in range(3)), name="t")


def test_blocks_are_domains() -> None:
    nodes = named_nodes([read_inventory(BLOCKS, name="t")])
    domain = nodes[20].fact(FactKind.DOMAIN)
    assert domain is not None
    assert (len(nodes), nodes[20].above, domain.value, domain.where) == (
        36,
        ("rack2",),
        "rack2",
        "t:2",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n",
            "'n1' is below 'a' in t:1, and below 'b' in t:2",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "'a' is below itself"),
        ("SwitchName=a Switches=a\n", "'a' is below itself"),
        ("SwitchName=a Switches=b\n", "switch 'b' has no line"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "'a' has a second line"),
        ("SwitchName=a\n", "neither nodes nor switches"),
        ("SwitchName=a Noddes=n1\n", "'Noddes=n1' is no key"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", "blocks beside switches"),
    ],
)
def test_what_is_no_tree_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read_inventory(text, name="t")


@pytest.mark.parametrize(
    ("gres", "product", "devices"),
    [
        ("gpu:h100:8(S:0-1)", "h100", 8),
        ("gpu:nvidia_a100-sxm4-80gb:4(IDX:0-3),shard:a:16", "nvidia_a100-sxm4-80gb", 4),
        ("gpu:8", None, 8),
        ("gpu:l40s:no_consume:2,license:1", "l40s", 2),
        ("(null)", None, 8),  # as CfgTRES has it
    ],
)
def test_gpus_of_a_node(gres: str, product: str | None, devices: int) -> None:
    (node,) = read_inventory(
        slurm_node("gpu1", gres=gres, more="InstanceType=p5.48xlarge"), name="nodes.txt"
    ).nodes
    found = {fact.what: fact.value for fact in node.facts}
    assert (found.get(FactKind.PRODUCT), found[FactKind.DEVICES], found[FactKind.HOST_MEMORY]) == (
        product,
        devices,
        2_063_937 * MIB,
    )
    assert (found[FactKind.INSTANCE], node.where) == ("p5.48xlarge", "nodes.txt:1")


def test_records_of_one_line_and_nodes_that_are_left_out() -> None:
    lines = [slurm_node(f"gpu{n}", gres="gpu:h100:8").replace("\n", " ") for n in range(3)]
    lines[1] = lines[1].replace("State=IDLE", "State=DOWN*+DRAIN")
    login = "NodeName=login1 Gres=(null) RealMemory=64000 State=IDLE"
    found = read_inventory("\n".join([*lines, login, "NodeName=DEFAULT Gres=gpu:4"]), name="t")
    assert [node.name for node in found.nodes] == ["gpu0", "gpu1", "gpu2"]
    assert [node.away for node in found.nodes] == ["", "down and drain and does not answer", ""]
    assert [note.value for note in found.notes] == ["1 without GPUs, left out"]


def test_lines_of_slurm_conf() -> None:
    found = read_inventory(
        "NodeName=gpu[01-16] Gres=gpu:h100:8 RealMemory=2000000 State=UNKNOWN\n", name="slurm.conf"
    )
    assert len(found.nodes) == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (slurm_node("a", gres="gpu:h100:4,gpu:a100:4"), "GPUs of 2 types in a node: a100, h100"),
        (slurm_node("a", gres="gpu:h100:8") * 2, "node 'a' is listed twice, also in t:1"),
        (slurm_node("a", gres="gpu:h100:99999"), "Gres is '99999'"),
        (slurm_node("a", gres="gpu:8", memory=0), "RealMemory is '0'"),
        ("NodeName=a Gres=(null)\n", "none of 1 nodes has a GPU"),
        ("NodeName=a[1-2][ Gres=gpu:8\n", "is no list of names"),
    ],
)
def test_what_are_no_nodes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read_inventory(text, name="t")
