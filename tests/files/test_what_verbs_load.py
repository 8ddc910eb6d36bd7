"""Verbs load what they need alone: no reader where no file is read, no serving simulation."""

from __future__ import annotations

import subprocess
import sys


def _loaded(verb: str) -> list[str]:
    """Names of the modules that the import of a verb loads."""
    code = f"import sys, shardwright.cli.verbs.{verb}; print(' '.join(sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_report_of_a_plan_loads_no_serving_simulation() -> None:
    loaded = _loaded("report")
    assert "shardwright.files.read_plan_and_simulation_files" in loaded
    assert not [name for name in loaded if name.startswith("shardwright.serving")]


def test_a_grid_search_loads_no_reader_of_files() -> None:
    loaded = _loaded("plan")
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
