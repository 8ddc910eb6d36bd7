"""What a user of a small dense model expects of the best plan."""

from __future__ import annotations

import pytest

from shardwright.api.searches.grid_search import plan
from shardwright.search.search_request import Request


@pytest.mark.parametrize(
    ("model", "cluster", "batch"),
    [
        ("llama-3.2-1b", "h100-sxm:8", 64),
        ("llama-3.1-8b", "h100-sxm:64", 512),
        ("qwen3-0.6b", "h100-sxm:32", 256),
    ],
)
def test_parameters_that_fit_are_not_gathered_in_every_layer(
    model: str, cluster: str, batch: int
) -> None:
    assert (
        plan(Request(model=model, cluster=cluster, seq_len=4096, global_batch=batch)).grid.zero <= 2
    )
