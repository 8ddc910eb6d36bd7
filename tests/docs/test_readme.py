"""Commands and figures of the README give what the README says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from shardwright.cli.main import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ONE_LINE = README.replace("\\\n", " ")


def test_the_example_of_simulate_fits(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"shardwright (simulate .*?\")\s+#", ONE_LINE)
    assert command is not None
    assert run([*shlex.split(command[1]), "--json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    assert prediction["fits"] is True
    assert prediction["peak_memory_bytes"]["reserved"] < 0.95 * prediction["capacity_bytes"]


def test_the_answer_that_is_shown_is_the_real_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = re.search(r"shardwright (plan .*?)\n", README)
    block = re.search(r"```text\n(Strategy.*?)```", README, flags=re.DOTALL)
    assert command is not None
    assert block is not None
    monkeypatch.setenv("COLUMNS", "119")
    assert run(shlex.split(command[1])) == 0
    # The search time is the only part of these lines that differs from run to run.
    answer = re.sub(r" Searched in .*", "", capsys.readouterr().out).splitlines()
    shown = [line for line in block[1].splitlines() if line]
    assert len(shown) > 20
    assert [line for line in answer if line in shown] == shown


def test_the_errors_are_those_of_the_accuracy_page() -> None:
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    rows = {
        name: (int(count), error)
        for name, count, error in re.findall(
            r"^\| (dense|with experts) \| (\d+) \| \d+ \| [^|]+ \| ([\d.]+) %,",
            accuracy,
            flags=re.M,
        )
    }
    (dense, dense_error), (experts, experts_error) = rows["dense"], rows["with experts"]
    text = " ".join(README.split())
    assert f"compared with {dense + experts} published training runs" in text
    assert f"{dense_error} % for dense models and {experts_error} % for mixtures of experts" in text
