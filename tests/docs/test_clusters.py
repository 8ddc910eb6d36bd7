"""docs/clusters.md: every file in it loads, every expression is one, and its keys are the
schema's."""

from __future__ import annotations

import re

import pytest

from shardwright.api.request_to_problem import load_cluster as load_any_cluster
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.files.cluster_schema import (
    AcceleratorRecord,
    ClusterRecord,
    HostRecord,
    LinkRecord,
    NodesRecord,
    NodeTierRecord,
    ReliabilityRecord,
    TierRecord,
    ZoneLinkRecord,
)
from shardwright.hardware.files.read_cluster_file import load_cluster
from tests.sources import SOURCE

PAGE = (SOURCE.parent / "docs" / "clusters.md").read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
EXPRESSIONS = re.findall(
    r"^\| `([^`]+)` \| .*$", PAGE.split("## How do I write a cluster file?")[0], re.MULTILINE
)
DEVICES = (128, 256, 160, 32, 96, 16)


@pytest.mark.parametrize(("text", "devices"), list(zip(FILES, DEVICES, strict=True)))
def test_files_load(text: str, devices: int) -> None:
    assert load_cluster(text).num_devices == devices


def test_expressions_are_read() -> None:
    assert [load_any_cluster(text).num_devices for text in EXPRESSIONS] == [
        64,
        128,
        16384,
        1016,
        128,
        8,
        24,
        128,
        64,
    ]


def test_a_file_without_changes_is_the_expression() -> None:
    assert load_cluster(FILES[0]).groups == parse_cluster("h100-sxm:128").groups


def test_keys_of_the_page_are_all_keys() -> None:
    explained = set(re.findall(r"`([a-z_]+)`", PAGE.split("## Which keys has a cluster file?")[1]))
    records = (
        ClusterRecord,
        NodesRecord,
        TierRecord,
        ZoneLinkRecord,
        AcceleratorRecord,
        HostRecord,
        LinkRecord,
        NodeTierRecord,
        ReliabilityRecord,
    )
    assert {key for record in records for key in record.model_fields} <= explained
