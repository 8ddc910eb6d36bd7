"""``shardwright plan --scenarios``: one plan for several states of a cluster, as people and
programs read it, and ``check`` of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from tests.tiers import in_both

FILE = """scenarios:
  - {name: usual, weight: 0.7}
  - {name: busy, weight: 0.2, network: 0.02}
  - {name: hot, weight: 0.1, nodes: [{node: 1, devices: 0.5}]}
"""
UNIFORM, MIXED = "a100-sxm-40gb:16", "a100-sxm-40gb:2+v100-sxm-16gb:2"
JOB = ["--seq-len", "64", "--global-batch", "16"]


def asked(folder: Path, cluster: str, *flags: str) -> list[str]:
    (folder / "states.yaml").write_text(FILE, encoding="utf-8")
    return [
        "plan",
        "examples/tiny.json",
        cluster,
        *JOB,
        "--scenarios",
        str(folder / "states.yaml"),
        *flags,
    ]


@pytest.mark.parametrize("cluster", [pytest.param(UNIFORM, marks=pytest.mark.proof), MIXED])
@in_both
@pytest.mark.parametrize(
    "tail",
    [pytest.param("0", marks=pytest.mark.proof), "0.8", pytest.param("1", marks=pytest.mark.proof)],
)
def test_answers_are_made_again(
    cluster: str, tail: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    assert run(asked(tmp_path, cluster, "--tail", tail, "--quiet", "-o", str(plan))) == 0
    document: dict[str, Any] = json.loads(plan.read_text(encoding="utf-8"))
    certificate, part = document["certificate"], document["certificate"]["scenarios"]
    assert document["request"]["scenarios"].endswith("states.yaml")
    assert [one["name"] for one in part["outcomes"]] == ["usual", "busy", "hot"]
    assert 0 < certificate["lower_bound_s"] <= certificate["best_s"]
    for one in part["outcomes"]:
        assert one["lower_bound_s"] <= one["best_s"] <= one["step_time_s"]
    judged = [one["share"] * one["step_time_s"] for one in part["outcomes"]]
    slowest = max(one["step_time_s"] for one in part["outcomes"])
    assert certificate["best_s"] == pytest.approx(
        {"0": sum(judged), "1": slowest}.get(tail, certificate["best_s"]), rel=1e-8
    )
    capsys.readouterr()
    assert run(["check", str(plan)]) == 0
    assert "holds" in capsys.readouterr().out
    assert run(["explain", str(plan)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Scenarios" in shown
    assert "hot" in shown
    assert run(["why", str(plan), "dp1"]) in (0, 5)


def test_the_usual_step_is_that_of_a_plan_for_one_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single state without anything slower: the plan is what `plan` finds without scenarios, and
    proven best."""
    (tmp_path / "one.yaml").write_text("scenarios: [{name: usual}]", encoding="utf-8")
    base = ["plan", "examples/tiny.json", UNIFORM, *JOB, "--json"]
    assert run([*base, "--scenarios", str(tmp_path / "one.yaml")]) == 0
    several = json.loads(capsys.readouterr().out)
    assert run(base) == 0
    alone = json.loads(capsys.readouterr().out)
    assert several["prediction"]["step_time_s"] == alone["prediction"]["step_time_s"]
    assert (
        several["certificate"]["best_s"]
        == several["certificate"]["lower_bound_s"]
        == alone["certificate"]["best_s"]
    )
    assert several["certificate"]["optimal"]


def test_a_changed_claim_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    few = ["--pin", "tp=1", "--pin", "cp=1", "--pin", "pp=1,2"]
    assert run(asked(tmp_path, UNIFORM, *few, "--quiet", "-o", str(plan))) == 0
    document = json.loads(plan.read_text(encoding="utf-8"))
    part = document["certificate"]["scenarios"]
    seconds = part["next_best"][0]["steps_s"].pop()
    plan.write_text(json.dumps(document), encoding="utf-8")
    for verb in ("check", "explain"):
        assert run([verb, str(plan)]) == 7
        assert (
            "next_best.0.steps_s has 2 items, not 3: one for each of certificate.scenarios.outcomes"
            in capsys.readouterr().err
        )
    part["next_best"][0]["steps_s"].append(seconds)
    part["outcomes"][1]["step_time_s"] *= 0.9
    plan.write_text(json.dumps(document), encoding="utf-8")
    assert run(["check", str(plan)]) == 7
    assert "outcomes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--space", "joint"], 2, "the joint space is searched for one state"),
        (["--objective", "cost"], 2, "searched for time alone"),
        (["--time-limit", "5"], 2, "ends by itself"),
        (["--tail", "2"], 2, "--tail"),
    ],
)
def test_what_it_has_not_is_said(
    flags: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(asked(tmp_path, UNIFORM, *flags)) == code
    assert message in capsys.readouterr().err


def test_files_of_other_clusters_and_a_tail_without_one_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(asked(tmp_path, "a100-sxm-40gb:8")) == 4
    assert "the cluster has no node 1" in capsys.readouterr().err
    assert run(["plan", "examples/tiny.json", UNIFORM, *JOB, "--tail", "0.9"]) == 2
    assert "--scenarios FILE" in capsys.readouterr().err
    assert (
        run(
            [
                "plan",
                "examples/tiny.json",
                UNIFORM,
                *JOB,
                "--scenarios",
                str(tmp_path / "none.yaml"),
            ]
        )
        == 4
    )
    assert "no scenario file" in capsys.readouterr().err
