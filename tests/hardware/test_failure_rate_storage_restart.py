"""What goodput is computed from: failures, storage and restarts of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.failure_rate_storage_restart import job_reliability
from shardwright.hardware.files.read_cluster_file import load_cluster
from tests.hardware.cluster_text import dump_cluster

LLAMA_3 = 419 / (16384 * 54 * 24)
"""Unexpected interruptions a device-hour: 419 in 54 days on 16,384 H100."""


def test_failures_are_those_of_the_accelerators() -> None:
    found = job_reliability(parse_cluster("h100-sxm:16384"), devices=16384)
    assert found.failures_per_hour.value == pytest.approx(LLAMA_3 * 16384)
    assert found.failures_per_hour.origin.evidence is Evidence.PUBLISHED
    mixed = job_reliability(parse_cluster("h100-sxm:8+a100-sxm-80gb:24"), devices=32)
    ampere = accelerator("a100-sxm-80gb").failures_per_device_hour
    assert mixed.failures_per_hour.value == pytest.approx(8 * LLAMA_3 + 24 * ampere)
    assert "RSC-1" in mixed.failures_per_hour.origin.reference
    assumed = job_reliability(parse_cluster("mi300x:8"), devices=8).failures_per_hour.origin
    assert assumed.evidence is Evidence.ASSUMED


@given(st.integers(1, 4_000_000))
def test_storage_is_of_the_whole_cluster_and_does_not_grow_without_end(devices: int) -> None:
    storage = job_reliability(parse_cluster("h100-sxm:8"), devices=devices).storage
    assert storage.value == min(0.15e9 * devices, 2e12)
    assert storage.origin.evidence is Evidence.ASSUMED


FILE = """nodes: [{accelerator: h100-sxm, count: 4}]
reliability:
  failures_per_device_hour: 1.0e-5
  storage_gigabytes_per_s: 40
  restart_s: 120
  origin: {evidence: measured, reference: our own log}
"""


def test_a_cluster_file_says_them() -> None:
    found = job_reliability(load_cluster(FILE), devices=32)
    assert (found.failures_per_hour.value, found.storage.value, found.restart_s.value) == (
        pytest.approx(3.2e-4),
        40e9,
        120.0,
    )
    assert {
        one.origin.reference for one in (found.failures_per_hour, found.storage, found.restart_s)
    } == {"our own log"}
    part = job_reliability(
        load_cluster("nodes: [{accelerator: h100-sxm, count: 4}]\nreliability: {restart_s: 0}"),
        devices=32,
    )
    assert part.restart_s.value == 0.0
    assert part.failures_per_hour.value == pytest.approx(32 * LLAMA_3)


def test_a_dumped_cluster_says_the_same() -> None:
    cluster = load_cluster(FILE)
    assert load_cluster(dump_cluster(cluster)) == cluster


def test_what_is_not_said_is_not_printed() -> None:
    """Digests of problems are made of what is printed."""
    plain = parse_cluster("h100-sxm:8")
    assert "reliability" not in repr(plain)
    assert repr(replace(plain, reliability=load_cluster(FILE).reliability)) != repr(plain)


@pytest.mark.parametrize(
    "line",
    [
        "failures_per_device_hour: -1",
        "storage_gigabytes_per_s: 0",
        "restart_s: fast",
        "storage_gb_s: 4",
    ],
)
def test_numbers_that_are_none_are_refused(line: str) -> None:
    with pytest.raises(ClusterError, match=line.split(":")[0]):
        load_cluster(f"nodes: [{{accelerator: h100-sxm, count: 4}}]\nreliability: {{{line}}}")
