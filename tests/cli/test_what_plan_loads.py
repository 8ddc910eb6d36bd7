"""A grid search should not pay for what it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

OTHERS = ("shardwright.search.joint", "shardwright.simulator.plans", "shardwright.program.transition")


@pytest.mark.xfail(
    strict=True,
    reason="api holds the verbs of grids and of general plans in one module: 94 modules more, a process 1.2 times as long as before",
)
def test_a_grid_search_loads_nothing_of_general_plans() -> None:
    code = "import sys, shardwright.cli.plan, shardwright.api; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(OTHERS)]
