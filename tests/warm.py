"""Kernels compiled once, not once a worker: each worker compiles some while others collect, and all
read the cache."""

from __future__ import annotations

from random import Random

from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import bound_pipeline
from shardwright.search.orders.find_order import find_order
from tests.search.joint.test_labels import random_case
from tests.search.orders.replay import chain


def compile_share(worker: str) -> None:
    """What the first two workers compile; the others collect. Where there is a cache this takes a
    moment."""
    if worker == "gw0":
        load_kernels()
    elif worker == "gw1":
        find_order(chain(2, 2), effort=0.01)
        for seed in range(4):
            bound_pipeline(*random_case(Random(seed)), limit=1e12, alike=False)
