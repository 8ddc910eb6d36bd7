"""What the README shows must be what its reader gets."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from shardwright.cli.main import run

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_of_simulate_fits(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"shardwright (simulate .*?\")\s+#", README.replace("\\\n", " "))
    assert found is not None
    assert run([*shlex.split(found[1]), "--json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    assert prediction["fits"] is True
    assert prediction["peak_memory_bytes"]["reserved"] < 0.95 * prediction["capacity_bytes"]
