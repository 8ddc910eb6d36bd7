"""cluster read and cluster show: files in, a cluster file, facts and pictures out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shardwright.cli.main import run
from shardwright.hardware.files.read_cluster_file import load_cluster
from tests.hardware.inventory_files import topo_matrix

ACCELERATOR = ["--accelerator", "h100-sxm"]


@pytest.fixture
def topo(tmp_path: Path) -> str:
    path = tmp_path / "topo.txt"
    path.write_text(topo_matrix(8, lambda a, b: "NV18", cards=[[n] for n in range(8)]))
    return str(path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints."""

    def printed(*words: str) -> str:
        assert run(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return printed


def test_read_writes_a_file_that_says_the_same(
    topo: str, tmp_path: Path, said: Callable[..., str]
) -> None:
    path = tmp_path / "cluster.yaml"
    words = ("cluster", "read", topo, *ACCELERATOR, "--nodes", "16", "-o", str(path))
    assert said(*words, "--quiet") == "128 x h100-sxm, 16 nodes of 8\n"
    document = json.loads(said(*words, "--json"))
    assert document["file"] == path.read_text()
    assert load_cluster(path).num_devices == 128
    (kind,) = document["nodes"]
    assert kind["count"] == 16
    assert {"what": "devices of a node", "value": 8, "words": "8", "where": "topo.txt:1"} in kind[
        "found"
    ]
    assert "memory of a node" in {one["what"] for one in kind["assumed"]}
    screen = said(*words)
    assert "NVLinks of a device" in screen
    assert "topo.txt:2" in screen


def test_nothing_is_written_where_files_contradict_each_other(
    topo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(["cluster", "read", topo, "--accelerator", "l40s", "-o", str(path)]) == 4
    assert capsys.readouterr().err.startswith(
        "error: NVLinks of a device is 0 links (l40s), and 18 links (topo.txt:2)\n"
    )
    assert not path.exists()


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_show_draws(ending: str, tmp_path: Path, said: Callable[..., str]) -> None:
    path = tmp_path / f"picture.{ending}"
    assert said("cluster", "show", "meta-24k-roce:3072", "-o", str(path)) == ""
    text = path.read_text()
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    kinds = [
        rect.get("class")
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect")
        if rect.get("class")
    ]
    assert kinds == ["unit", "unit", "node"]


def test_show_says_the_tree(said: Callable[..., str]) -> None:
    document = json.loads(
        said("cluster", "show", "h100-sxm:16@a+l40s:8@b,a~b=25gbps/60ms", "--json")
    )
    assert [(node["accelerator"], node["count"], node["zone"]) for node in document["nodes"]] == [
        ("h100-sxm", 2, "a"),
        ("l40s", 1, "b"),
    ]
    assert [branch["title"] for branch in document["tree"]["inside"]] == [
        "network of 16 devices in a",
        "network of 8 devices in b",
    ]
    assert [
        (link["source"], link["gbit_per_s_a_node"], link["latency_ms"])
        for link in document["links"]
    ] == [("a", 25, 60), ("b", 25, 60)]
