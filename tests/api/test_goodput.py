"""Goodput of a plan: from failures, storage and restarts of its cluster."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

import shardwright
from shardwright.search.search_answer import Goodput
from shardwright.search.search_request import Request

PINS = tuple(
    (axis, (value,))
    for axis, value in (
        ("tp", "1"),
        ("pp", "1"),
        ("cp", "1"),
        ("zero", "1"),
        ("mbs", "1"),
        ("recompute", "none"),
    )
)
FILE = """nodes: [{{accelerator: h100-sxm, count: 64}}]
reliability: {{failures_per_device_hour: 2.0e-5,\
 storage_gigabytes_per_s: {storage}, restart_s: {restart}}}
"""


def goodput_of(path: Path, *, storage: float, restart: float) -> Goodput:
    path.write_text(FILE.format(storage=storage, restart=restart), encoding="utf-8")
    request = Request(
        model="llama-3.2-1b", cluster=str(path), seq_len=2048, global_batch=512, pins=PINS
    )
    found = shardwright.plan(replace(request, top=0)).goodput
    assert found is not None
    return found


def test_storage_and_restarts_are_the_clusters(tmp_path: Path) -> None:
    """1.236 billion parameters of 14 bytes (weights, a copy in 32 bits, two moments) take 17.3 s at
    1 GB/s in all."""
    path = tmp_path / "c.yaml"
    slow = goodput_of(path, storage=1, restart=60)
    between = 3600 / (2.0e-5 * 512)
    assert slow.failures_per_day == pytest.approx(86400 / between)
    assert slow.checkpoint_interval_s == pytest.approx(sqrt(2 * 17.3 * between), rel=0.01)
    assert "17.3 s: 0.0173 TB at 1 GB/s in all" in slow.assumptions[1]
    assert slow.assumptions[2] == "a restart takes 60 s (given in the cluster file)"
    fast, late = goodput_of(path, storage=4, restart=60), goodput_of(path, storage=1, restart=600)
    assert fast.checkpoint_interval_s == pytest.approx(slow.checkpoint_interval_s / 2, rel=0.01)
    assert slow.goodput - late.goodput == pytest.approx(540 / between)
