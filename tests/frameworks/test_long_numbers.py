"""Integers that Python reads and refuses to write out again are refused in one line."""

from __future__ import annotations

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model

LONG = "0x1" + "0" * 5_000
FILES = {
    "a.toml": (
        f"[training]\nlocal_batch_size = {LONG}\n[parallelism]\ndata_parallel_shard_degree = 8\n"
    ),
    "b.toml": f"[training]\nlocal_batch_size = [1, [{LONG}]]\n",
    "c.py": f"import nemo_run as run\nfrom nemo.collections import llm\nNODES = {LONG}\n",
    "d.yaml": f"compute_environment: LOCAL_MACHINE\nnum_processes: {LONG}\n",
}


@pytest.mark.parametrize("name", list(FILES))
def test_a_number_that_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="too long"):
        launch_of_files([(name, FILES[name])], model=load_model("llama-3.1-8b"), devices=8)
