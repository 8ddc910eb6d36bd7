"""`shardwright run`: data that are evaluated, and what a run that goes on is asked without being told."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.cli.main import run
from shardwright.execute.state.remembered import FILE
from tests.cli.test_run import plan_file, words

STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    random = np.random.default_rng(0)
    np.save(path / "tokens.npy", random.integers(0, 64, 2000).astype(np.uint8))
    np.save(path / "kept.npy", random.integers(0, 64, 400).astype(np.uint8))
    plan_file(path, "one", "mbs2")
    plan_file(path, "two", "pp2 mbs2 schedule=1f1b", devices=2)
    return path


def evaluating(folder: Path, plan: str) -> list[str]:
    return [*words(folder, plan, steps=STEPS), "--eval-data", str(folder / "kept.npy"), "--eval-every", "2", "--eval-batches", "3"]


def found(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, list[dict[str, float]]]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    document: dict[str, list[dict[str, float]]] = json.loads(capsys.readouterr().out)
    return document


def test_data_that_are_not_learnt_are_evaluated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "steps.jsonl"
    seen = found(capsys, [*evaluating(folder, "one.plan"), "--metrics", str(lines)])
    plain = found(capsys, words(folder, "one.plan", steps=STEPS))
    assert [s["loss"] for s in seen["steps"]] == [s["loss"] for s in plain["steps"]]
    assert [one["step"] for one in seen["evaluations"]] == [2, 4]
    assert seen["evaluations"][0]["loss"] != seen["evaluations"][1]["loss"]
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [("loss" in line, "eval_loss" in line) for line in written] == [(True, False)] * 2 + [(False, True)] + [(True, False)] * 2 + [
        (False, True)
    ]
    assert written[-1]["eval_loss"] == pytest.approx(seen["evaluations"][1]["loss"], abs=1e-8)


def test_the_loss_before_anything_is_learnt_is_that_of_a_step(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step says the loss before its update, so its own data evaluated behind a step of rate 0 are the same."""
    still = [*words(folder, "one.plan", steps=1), "--rate", "0", "--eval-data", str(folder / "tokens.npy"), "--eval-batches", "1"]
    seen = found(capsys, still)
    assert seen["evaluations"][0]["loss"] == pytest.approx(seen["steps"][0]["loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--eval-every", "2"], "need data that are not learnt"),
        (["--eval-data", "nowhere.npy"], "nowhere.npy"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str) -> None:
    assert run([*words(folder, "one.plan"), *more]) != 0
    assert said in capsys.readouterr().err


def test_a_run_that_goes_on_is_asked_the_same(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [
        "--rate",
        "0.01",
        "--curve",
        "linear",
        "--decay",
        "0.3",
        "--no-decay",
        "vectors",
        "--betas",
        "0.8,0.9",
        "--shuffle",
        "--seed",
        "5",
    ]
    whole = found(capsys, [*words(folder, "one.plan", steps=4), *chosen])["steps"]
    # Half of the steps of four, as the rate is of the steps in all.
    assert run([*words(folder, "one.plan", steps=4), *chosen, "--checkpoints", str(tmp_path), "--every", "2", "--quiet"]) == 0
    for step in (3, 4):
        last = tmp_path / f"step-{step:08d}"
        if last.exists():
            last.rename(tmp_path / f"kept-{step}")
    again = found(capsys, [*words(folder, "one.plan", steps=4), "--checkpoints", str(tmp_path)])["steps"]
    assert [s["loss"] for s in again] == pytest.approx([s["loss"] for s in whole[2:]], abs=1e-12)
    assert json.loads((tmp_path / FILE).read_text())["rate"] == 0.01


def test_what_is_asked_otherwise_is_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = ["--checkpoints", str(tmp_path)]
    assert run([*words(folder, "one.plan", steps=1), *kept, "--rate", "0.01", "--quiet"]) == 0
    assert run([*words(folder, "one.plan", steps=2), *kept, "--rate", "0.02"]) == 0
    assert "--rate 0.02 (was 0.01)" in capsys.readouterr().err
    assert run([*words(folder, "one.plan", steps=3), *kept]) == 0
    assert "(was" not in capsys.readouterr().err, "the newest is what counts"
    assert json.loads((tmp_path / FILE).read_text())["rate"] == 0.02
    (tmp_path / FILE).write_text("{")
    assert run([*words(folder, "one.plan", steps=4), *kept, "--quiet"]) == 0


def test_ranks_are_asked_what_the_run_is(folder: Path, tmp_path: Path) -> None:
    """Two ranks begin; one process goes on, and is asked what they were."""
    lines, kept = tmp_path / "steps.jsonl", ["--checkpoints", str(tmp_path / "kept")]
    chosen = ["--rate", "0.01", "--shuffle", "--no-decay", "vectors", "--metrics", str(lines), "--every", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "shardwright", *evaluating(folder, "two.plan"), *chosen, *kept], check=True, timeout=300)
    assert run([*words(folder, "one.plan", steps=6), *kept, "--metrics", str(lines), "--quiet"]) == 0
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {line["rate"] for line in written if "rate" in line} == {0.01}
    assert [line["step"] for line in written if "eval_loss" in line] == [2, 4, 6]


def test_one_engine_goes_on_from_the_others_checkpoint(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the first evaluates is what one process would, and its trace stands beside the prediction."""
    kept, lines, measured = ["--checkpoints", str(tmp_path / "kept")], tmp_path / "steps.jsonl", str(tmp_path / "measured.json")
    more = ["--backend", "torch-native", "--every", "1", "--metrics", str(lines), "--trace", measured, "--quiet"]
    first = [*evaluating(folder, "two.plan"), *kept, *more]
    subprocess.run([sys.executable, "-m", "shardwright", *first], check=True, timeout=300)
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert found(capsys, ["trace", str(folder / "two.plan"), "--compare", measured])["devices"]
    alone = found(capsys, [*evaluating(folder, "one.plan"), "--steps", str(STEPS + 1)])
    again = found(capsys, [*words(folder, "one.plan", steps=STEPS + 1), *kept])["steps"]
    assert [step["loss"] for step in again] == pytest.approx([s["loss"] for s in alone["steps"]][STEPS:], abs=1e-8)
    evaluated = {line["step"]: line["eval_loss"] for line in written if "eval_loss" in line}
    assert evaluated == pytest.approx({e["step"]: e["loss"] for e in alone["evaluations"] if e["step"] <= STEPS}, abs=1e-8)
    assert len(evaluated) == 2


@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="TensorBoard is installed")
def test_tensorboard_is_asked_for_where_it_lacks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words(folder, "one.plan"), "--tensorboard", str(tmp_path)]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_numbers_go_to_tensorboard_under_their_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from shardwright.execute.launch.tensorboard import writer

    write = writer(tmp_path)
    write({"step": 1, "loss": 2.0, "tokens_per_s": None})
    write({"step": 1, "eval_loss": 3.0, "eval_seconds": 0.5})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("eval/loss")] == [(1, 3.0)]
