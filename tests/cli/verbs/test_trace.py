"""``shardwright trace``: a stored plan's simulated step, and beside it a measured one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.api.trace_simulated_step import trace
from shardwright.cli.main import run
from shardwright.cli.verbs.trace import read_devices
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.files.trace_file import read_traces, trace_text
from shardwright.program.step_trace import Origin, StepTrace
from tests.cli.answers import ANSWER
from tests.golden.files import assert_golden

PLAN = """plan pair devices 4
lane main samples 8 in 4
  stages embed+8 on 0
    all = t2
    stream = s2
  stages 8+head on 2
    all = b2
order 1f1b(main)
"""
SLOWER = 1.25


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    (folder / "pair.plan").write_text(PLAN)
    stored = folder / "pair.json"
    words = [
        "simulate",
        "llama-3.2-1b",
        "h100-sxm:4",
        "--seq-len",
        "2048",
        "--global-batch",
        "8",
        "--quiet",
    ]
    assert run([*words, "--strategy", str(folder / "pair.plan"), "-o", str(stored)]) == 0
    return stored


def slower(plan: Path) -> StepTrace:
    """All devices, as if each of their spans had taken a quarter longer."""
    found = trace(stored_plan(read_saved(plan)), devices=range(4))
    spans = tuple(
        replace(s, start_s=s.start_s * SLOWER, end_s=s.end_s * SLOWER, exposed_s=0.0)
        for s in found.spans
    )
    return replace(
        found, origin=Origin.MEASURED, spans=spans, memory=(), step_s=found.step_s * SLOWER
    )


def test_screen(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["trace", str(plan)]) == 0
    assert_golden("trace.txt", capsys.readouterr().out)


def test_comparison(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured, both = tmp_path / "measured.json", tmp_path / "both.json"
    measured.write_text(trace_text(slower(plan)), encoding="utf-8")
    capsys.readouterr()
    assert run(["trace", str(plan), "--compare", str(measured), "-o", str(both)]) == 0
    assert_golden("trace-compared.txt", capsys.readouterr().out)
    first, second = read_traces(both)
    assert (first.origin, second.origin) == (Origin.SIMULATED, Origin.MEASURED)
    assert first.actions == second.actions
    names = [
        e["args"]["name"]
        for e in json.loads(both.read_text())["traceEvents"]
        if e["name"] == "process_name"
    ]
    assert names == [
        f"{origin} · device {device}" for device in range(4) for origin in ("simulated", "measured")
    ]
    assert run(["trace", str(plan), "--compare", str(both), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] == pytest.approx(1 / SLOWER - 1)
    assert [row["device"] for row in document["devices"]] == [0, 1, 2, 3]
    assert all(
        row["measured"]["compute_s"] > row["simulated"]["compute_s"] > 0
        for row in document["devices"]
    )


def test_file_has_the_devices_that_are_asked_for(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    assert run(["trace", str(plan), "--devices", "0,2-3", "-o", str(path), "--quiet"]) == 0
    (found,) = read_traces(path)
    assert capsys.readouterr().out == f"{found.step_s:.9g} s\tsimulated\n"
    assert [d.device for d in found.devices] == [0, 2, 3]
    saved = read_saved(plan)
    assert saved.plan is not None
    assert found.step_s == pytest.approx(saved.prediction.step_time_s, rel=1e-8)


def test_an_answer_of_a_search(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text(to_text(plan_document(ANSWER)))
    assert run(["trace", str(tmp_path / "best.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["origin"] == "simulated"
    assert sum(row["alike"] for row in document["devices"]) == ANSWER.grid.devices


def test_a_trace_of_another_plan(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    found = slower(plan)
    for other, says in (
        (
            replace(found, spans=found.spans[1:]),
            "F of lane 0 chunk 0 microbatch 0 slice 0 is in one trace and not in the other",
        ),
        (
            replace(
                found,
                devices=(replace(found.devices[0], device=9),),
                spans=tuple(replace(s, device=9) for s in found.spans if s.device == 0),
                memory=(),
            ),
            "device 9 runs nothing",
        ),
    ):
        path.write_text(trace_text(other), encoding="utf-8")
        assert run(["trace", str(plan), "--compare", str(path)]) == 7
        error = capsys.readouterr().err
        assert error.startswith("error: the measured trace is not of this plan: ")
        assert says in error


def test_what_does_not_go_together(
    plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["trace", str(plan), "--compare", str(tmp_path / "none.json")]) == 7
    assert run(["trace", str(plan), "--compare", str(plan)]) == 7
    assert run(["trace", str(plan), "--compare", str(plan), "--devices", "0"]) == 2
    assert run(["trace", str(plan), "--devices", "4"]) == 2
    assert run(["trace", str(plan), "-o", str(tmp_path)]) == 2
    assert [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")
    ] == [
        f"error: cannot read trace {tmp_path / 'none.json'}: No such file or directory",
        f"error: {plan} is not a trace of a plan: its schema is not shardwright.trace",
        "error: --devices and --compare do not go together",
        "error: device 4 runs nothing in this plan",
        f"error: cannot write {tmp_path}: it is a folder",
    ]


@pytest.mark.parametrize(("text", "devices"), [("", ()), ("3", (3,)), ("0, 8-10,9", (0, 8, 9, 10))])
def test_devices(text: str, devices: tuple[int, ...]) -> None:
    assert read_devices(text) == devices


@pytest.mark.parametrize(
    "text", [",", "a", "1-", "-1", "5-3", "0-9999999", "1.5", "9" * 30, "0-1-2"]
)
def test_bad_devices(text: str) -> None:
    with pytest.raises(UsageError, match="--devices"):
        read_devices(text)
