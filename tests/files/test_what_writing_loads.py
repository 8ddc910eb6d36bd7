"""Writing a file needs no reader: a search that reads no file loads no pydantic."""

from __future__ import annotations

import subprocess
import sys


def test_a_grid_search_loads_no_reader_of_files() -> None:
    code = "import sys, shardwright.cli.verbs.plan; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "shardwright.files.plan_and_simulation_file_contents" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(
            (
                "pydantic",
                "shardwright.files.strict_pydantic_models_of_dataclasses",
                "shardwright.files.read_plan_and_simulation_files",
            )
        )
    ]
