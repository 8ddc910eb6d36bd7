"""``shardwright run`` of plans that ``shardwright plan`` found on mixed clusters, over gloo ranks:
the losses of a single process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.cli.main import run
from tests.cli import ranks

DEADLINE_S = 240.0
SIZES = ["--seq-len", "32", "--precision", "fp16", "--quiet"]
ASKED = {
    "two kinds": ("h100-sxm:2+a100-sxm-80gb:2", "10", 4),
    "idle ones first": ("h100-sxm:2+v100-sxm-16gb:4", "64", 4),
}
"""Cluster, samples a step, devices of the plan: lanes of unlike lengths and samples; the second
kind alone, behind two idle devices."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed")
    np.save(
        path / "tokens.npy", np.random.default_rng(0).integers(0, 320, 20_000).astype(np.uint16)
    )
    return path


def words(folder: Path, plan: Path) -> list[str]:
    return [
        "run",
        str(plan),
        "--data",
        str(folder / "tokens.npy"),
        "--steps",
        "2",
        "--formats",
        "fp64",
        "--json",
    ]


@pytest.mark.parametrize(
    "name", ["two kinds", pytest.param("idle ones first", marks=pytest.mark.proof)]
)
def test_a_found_plan_trains_over_ranks_as_a_single_process(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, batch, devices = ASKED[name]
    found, alone, own = folder / f"{name}.json", folder / f"{name} alone.json", folder / name
    own.mkdir()
    asked = ["examples/tiny.json", cluster, *SIZES, "--global-batch", batch]
    pins = ["--pin", "mbs=1"] if name == "two kinds" else []
    assert run(["plan", *asked, *pins, "-o", str(found)]) == 0
    one = ["simulate", "examples/tiny.json", "h100-sxm:1", *SIZES, "--global-batch", batch]
    assert run([*one, "--strategy", "mbs1", "-o", str(alone)]) == 0
    processes = ranks.start(words(folder, found), ranks=devices, folder=own)
    try:
        capsys.readouterr()
        assert run(words(folder, alone)) == 0
        expected = [step["loss"] for step in json.loads(capsys.readouterr().out)["steps"]]
        for process in processes:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in processes] == [0] * devices
    finally:
        for process in processes:
            process.kill()
    report = json.loads((own / "rank0").read_text())
    assert [step["loss"] for step in report["steps"]] == pytest.approx(expected, abs=1e-9)
    assert len({device for klass in report["memory"] for device in klass["devices"]}) == devices


def test_a_plan_is_launched_with_a_rank_for_each_device_that_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def launch(arguments: list[str], *, ranks: int) -> int:
        started.append(ranks)
        return 0

    monkeypatch.setattr("shardwright.cli.verbs.run.start_ranks", launch)
    plan = folder / "launched.json"
    assert (
        run(
            [
                "plan",
                "examples/tiny.json",
                "h100-sxm:2+v100-sxm-16gb:4",
                *SIZES,
                "--global-batch",
                "64",
                "-o",
                str(plan),
            ]
        )
        == 0
    )
    assert json.loads(plan.read_text())["plan"]["devices"] == 6
    assert run(words(folder, plan)) == 0
    assert started == [4]
