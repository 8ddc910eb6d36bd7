"""A cluster's tree has every device once, and units that are alike as one branch."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.report.pictures.cluster_picture_content import Branch, cluster_picture
from shardwright.report.pictures.cluster_svg import cluster_svg

MIXED = """
nodes:
  - {accelerator: h100-sxm, count: 6}
  - {accelerator: a100-sxm-80gb, count: 4, devices_per_node: 4}
  - {accelerator: h100-sxm, count: 3}
fabric: [{name: leaf, devices: 32}, {name: spine, devices: 64}, {name: core}]
"""


def outline(branch: Branch) -> tuple[object, ...]:
    name = branch.title.split()[0] if branch.level else branch.title.removeprefix("node of ")
    return (branch.count, name, *map(outline, branch.inside))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100-sxm:8", (1, "cluster of 8 devices", (1, "8 h100-sxm"))),
        ("h100-sxm:4096", (1, "network", (512, "8 h100-sxm"))),
        (
            "gb200-nvl72:144",
            (1, "network", (2, "scale-up domain of 72 devices", (18, "4 gb200-nvl72"))),
        ),
        ("h100-sxm:16+l40s:8", (1, "network", (2, "8 h100-sxm"), (1, "8 l40s"))),
        (
            MIXED,
            (
                1,
                "core",
                (
                    1,
                    "spine",
                    (1, "leaf", (4, "8 h100-sxm")),
                    (1, "leaf", (2, "8 h100-sxm"), (4, "4 a100-sxm-80gb")),
                ),
                (1, "spine", (1, "leaf", (3, "8 h100-sxm"))),
            ),
        ),
    ],
)
def test_outline(text: str, expected: tuple[object, ...]) -> None:
    assert outline(cluster_picture(load_cluster(text)).tree) == expected


def devices(branch: Branch) -> int:
    inside = sum(map(devices, branch.inside)) if branch.inside else int(branch.title.split()[2])
    return branch.count * inside


@pytest.mark.parametrize(
    "text",
    [
        "meta-24k-roce",
        "meta-24k-roce:3088",
        "gb200-nvl72:100",
        "h100-nvl:24",
        "dgx-superpod-h100",
        "tpu-v5p-256",
    ],
)
def test_every_device_is_there_once(text: str) -> None:
    cluster = parse_cluster(text)
    assert devices(cluster_picture(cluster).tree) == cluster.num_devices


def test_boxes_lie_inside_each_other_or_apart() -> None:
    svg = ElementTree.fromstring(cluster_svg(cluster_picture(load_cluster(MIXED))))
    boxes = [
        tuple(float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect")
        if rect.get("class")
    ]
    assert len(boxes) == 10
    for (x, y, width, height), (left, top, wide, high) in combinations(boxes, 2):
        inside = x < left and y < top and left + wide < x + width and top + high < y + height
        assert inside or top > y + height


def test_many_units_that_differ_are_cut_short() -> None:
    nodes = "\n".join(
        f"  - {{accelerator: {'h100-sxm' if n % 2 else 'l40s'}, count: {n + 1}}}"
        for n in range(200)
    )
    tree = cluster_picture(load_cluster(f"nodes:\n{nodes}\n")).tree
    assert (len(tree.inside), tree.inside[-1].title) == (65, ".. 136 more, which differ")
