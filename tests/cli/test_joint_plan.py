"""``plan --space joint``: the plan, its certificate, and a file that ``check`` verifies."""

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run as command

WORDS = [
    "plan",
    "llama-3.2-1b",
    "h100-sxm:8",
    "--seq-len",
    "4096",
    "--global-batch",
    "16",
    "--pin",
    "pp=4",
    "--pin",
    "tp=2",
    "--pin",
    "mbs=1",
]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = command(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_joint_plan_is_stored_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    code, out, err = run([*WORDS, "--space", "joint", "--json", "-o", str(path)], capsys)
    assert code == 0, err
    document = json.loads(out)
    assert document["unsearched"]["best"]["step_time_s"] < document["certificate"]["best_s"]
    certificate = document["certificate"]
    parts = sum(
        certificate[name]
        for name in ("illegal", "duplicates", "infeasible", "bounded_b0", "bounded_b1", "simulated")
    )
    assert certificate["enumerated"] == parts
    assert certificate["lower_bound_s"] <= certificate["best_s"]
    assert document["plan"]["orders"], "a found order is part of the plan"
    code, out, err = run(["check", str(path)], capsys)
    assert code == 0, err
    assert "The plan holds." in out
    code, out, err = run(
        ["why", str(path), "tp2 sp pp4 dp1 mbs1 zero1 recompute=full", "--json"], capsys
    )
    assert code == 0, err
    assert json.loads(out)["search"]["fate"] == "bounded", (
        "the joint space has the grids of the standard one"
    )
    assert json.loads(out)["search"]["bound_s"] >= certificate["best_s"]
    # The same question with named orders is never answered faster.
    code, out, err = run([*WORDS, "--space", "joint-named", "--quiet"], capsys)
    assert code == 0, err
    assert float(out.split()[0]) >= certificate["best_s"]


def test_the_screen_has_notation_and_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*WORDS, "--space", "joint", "--time-limit", "5"], capsys)
    assert code == 0, err
    assert "plan joint devices 8" in out
    assert "order table-search(main)" in out
    assert "strategies in" in out
    assert (
        "Pipelines have one value of axes that grids have several of: shard=0, offload=0"
        in " ".join(out.split())
    )
    assert "Options that change no numerics and were not searched" in out
    assert "gap" in out
