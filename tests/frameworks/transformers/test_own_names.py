"""A framework on Trainer is told a strategy by the names that its files have."""

from __future__ import annotations

import pytest

from shardwright.frameworks.registry import READERS
from shardwright.strategy.text.grid_notation import parse_grid

OWN = {
    ("ms-swift", "deepspeed_autotp_size"): "2",
    ("axolotl", "tensor_parallel_size"): "2",
    ("torchtune", "tensor_parallel_dim"): "2",
    ("huggingface-trainer", "tensor_parallel"): "2",
}


@pytest.mark.parametrize(("framework", "name"), OWN)
def test_degrees_have_the_names_that_are_read(framework: str, name: str) -> None:
    settings_of = READERS.load(framework).settings_of
    assert settings_of is not None
    grid = parse_grid("tp2 dp4 mbs1 zero2")
    found = settings_of(grid, runtime="torchtitan-0.2", global_batch=32)
    assert found[name] == OWN[framework, name]
    assert sum("tensor" in key or "autotp" in key for key in found) == 1
