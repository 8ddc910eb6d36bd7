"""A grid search should not pay for what it does not use."""

from __future__ import annotations

import subprocess
import sys

OTHERS = ("shardwright.search.joint", "shardwright.simulator.plans", "shardwright.program.transition")


def test_a_grid_search_loads_nothing_of_general_plans() -> None:
    code = "import sys, shardwright.cli.plan; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(OTHERS)]
