"""Clusters from files: what a log of nccl-tests says of a node that a dump describes, and a plan on
what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.api.read_cluster_inventories_or_compute_picture import read_cluster
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.errors import ClusterError, UsageError
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.search.search_request import Request
from tests.hardware.inventory_files import HGX_H100


def log(gigabytes_per_s: float, *, size: int = 2**30, ranks: int = 8) -> str:
    """all_gather_perf over some devices: bus bandwidth is (n - 1) / n of size over time."""
    time = (ranks - 1) / ranks * size / gigabytes_per_s / 1e3
    lines = [
        f"#  Rank {n:2d} Group  0 Pid {n} on  host device  {n} [0x1b] NVIDIA H100 80GB HBM3"
        for n in range(ranks)
    ]
    header = [
        "# all_gather_perf",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    ]
    return "\n".join(
        [
            *header[:1],
            *lines,
            header[1],
            f"  {size}  {size // 4}  float  none  -1  {time:.2f}  0  {gigabytes_per_s}  0",
            "",
        ]
    )


def test_a_dump_and_a_log_are_a_cluster_to_plan_on(tmp_path: Path) -> None:
    (tmp_path / "dump.xml").write_text(HGX_H100)
    (tmp_path / "all_gather.log").write_text(log(360.0))
    found = read_cluster([tmp_path / "dump.xml", tmp_path / "all_gather.log"], nodes=2)
    assert found.cluster.node.scale_up.efficiency == pytest.approx(0.8, abs=1e-3)
    path = tmp_path / "cluster.yaml"
    path.write_text(found.text)
    assert load_cluster(path) == found.cluster
    request = Request(model="llama-3.2-1b", cluster=str(path), seq_len=2048, global_batch=32)
    assert simulation(request, strategy="dp16 mbs2 zero1").prediction.step_time_s > 0


def test_small_messages_say_nothing_of_links(tmp_path: Path) -> None:
    path = tmp_path / "all_gather.log"
    path.write_text(log(3.0, size=2**20))
    with pytest.raises(
        ClusterError,
        match=r"all_gather.log: messages of at most 1 MiB do not show what links carry",
    ):
        read_cluster([path], accelerators=("h100-sxm",))


@pytest.mark.parametrize(
    "words", [("h100-sxm", "h200-sxm"), ("a=h100-sxm", "a=l40s"), ("",), ("a=",)]
)
def test_what_is_said_twice_or_not_at_all_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="says it again, or nothing"):
        read_cluster([Path("x")], accelerators=words)


def test_too_many_files_are_refused() -> None:
    with pytest.raises(UsageError, match="65 files"):
        read_cluster([Path("x")] * 65)
