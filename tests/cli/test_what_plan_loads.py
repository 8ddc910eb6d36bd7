"""A grid search should not pay for what it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

OTHERS = (
    "shardwright.search.joint",
    "shardwright.search.orders",
    "shardwright.search.exact",
    "shardwright.simulator.simulated_trace",
)
"""Searches of other spaces, and traces. Grids are simulated as the plans that they are, so what
lowers a plan is loaded."""


def test_a_grid_search_loads_no_other_search() -> None:
    code = "import sys, shardwright.cli.verbs.plan; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "shardwright.search.grid.find_best_grid" in loaded
    assert not [name for name in loaded if name.startswith(OTHERS)]


def test_kernels_load_without_linear_algebra_which_is_there_when_it_is_asked_for() -> None:
    pytest.importorskip("numba")
    pytest.importorskip("scipy")
    code = """
import sys
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
load_kernels()
print("scipy.linalg" in sys.modules)
import numba, numpy as np
print(numba.njit(lambda a: np.dot(a, a))(np.eye(2)).sum())
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == ["False", "2.0"]
