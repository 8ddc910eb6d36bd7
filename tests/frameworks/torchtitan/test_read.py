"""What torchtitan's files leave out is its own default."""

from __future__ import annotations

import pytest

from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model

FILE = """[training]
local_batch_size = 4
seq_len = 8192

[parallelism]
data_parallel_shard_degree = 2
context_parallel_degree = 2
pipeline_parallel_degree = 2
"""


@pytest.mark.parametrize(
    ("more", "gather", "schedule"),
    [
        ("", True, "1f1b"),
        ('context_parallel_rotate_method = "alltoall"\n', False, "1f1b"),
        ('pipeline_parallel_schedule = "Interleaved1F1B"\n', True, "interleaved-1f1b"),
    ],
)
def test_files_without_a_setting_have_its_default(more: str, gather: bool, schedule: str) -> None:
    """Releases 0.1 to 0.2.2 have allgather and 1F1B in config/job_config.py."""
    files = [("a.toml", FILE + more)]
    launch = launch_of_files(files, model=load_model("llama-3.1-8b"), devices=8)
    assert (launch.grid.gather, launch.grid.schedule) == (gather, schedule)
