"""`shardwright run` beside what happens to real runs: one error with its cause, the last good
checkpoint whole, no process left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.cli.main import run
from tests.cli.verbs.test_run import DEADLINE_S, children, environment, plan_file, runs, words

STALLED = """import os, signal
if os.environ.get("RANK"):
    from shardwright.execute.checkpoints import save_and_resume_across_ranks as checkpoint_ranks

    write, mark = checkpoint_ranks.write_device, os.environ["FAULT_MARK"]

    def stalled(own, *asked):
        written = write(own, *asked)
        if own.steps == 2:
            open(f"{mark}{os.environ['RANK']}", "w").close()
            signal.pause()
        return written

    checkpoint_ranks.write_device = stalled
"""
FULL = """import errno, os
if os.environ.get("RANK") == "1":
    from shardwright.execute.checkpoints import save_and_resume_across_ranks as checkpoint_ranks

    write = checkpoint_ranks.write_device

    def full(own, *asked):
        if own.steps == 2:
            def fsync(descriptor):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync = fsync
        return write(own, *asked)

    checkpoint_ranks.write_device = full
"""
"""What ranks do instead, by Python's own hook at its start."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults")
    np.save(path / "tokens.npy", np.random.default_rng(0).integers(0, 64, 2000).astype(np.uint8))
    plan_file(path, "two", "pp2 mbs2 schedule=1f1b", devices=2)
    plan_file(path, "one", "mbs2")
    return path


def losses(folder: Path, said: pytest.CaptureFixture[str], *more: str) -> list[float]:
    """Of four steps on one device in this process, which goes on from what two ranks left."""
    said.readouterr()
    assert run([*words(folder, "one.plan", steps=4), *more, "--json"]) == 0
    return [step["loss"] for step in json.loads(said.readouterr().out)["steps"]]


def hooked(text: str, tmp_path: Path, **more: str) -> dict[str, str]:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join(filter(None, (str(tmp_path / "hook"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def saving(folder: Path, kept: Path, *, steps: int) -> list[str]:
    return [*words(folder, "two.plan", steps=steps), "--checkpoints", str(kept), "--every", "1"]


@pytest.mark.proof
def test_all_killed_in_the_middle_of_a_checkpoint_go_on_from_the_one_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, mark = tmp_path / "kept", tmp_path / "mark"
    command = [sys.executable, "-m", "shardwright", *saving(folder, kept, steps=4)]
    process = subprocess.Popen(
        command,
        env=hooked(STALLED, tmp_path, FAULT_MARK=str(mark)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + DEADLINE_S
    while not all(Path(f"{mark}{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    ranks = [pid for pid in children(process.pid) if "RANK" in environment(pid)]
    for pid in (process.pid, *ranks):
        os.kill(pid, signal.SIGKILL)
    process.wait(DEADLINE_S)
    while any(runs(pid) for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert losses(folder, capsys, "--checkpoints", str(kept)) == pytest.approx(
        losses(folder, capsys)[1:], abs=1e-8
    )


def test_a_full_disk_is_said_and_leaves_the_checkpoint_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "shardwright", *saving(folder, kept, steps=4)]
    done = subprocess.run(
        command, env=hooked(FULL, tmp_path), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode not in (0, 1)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "No space left on device" in errors[0]
    assert losses(folder, capsys, "--checkpoints", str(kept)) == pytest.approx(
        losses(folder, capsys)[1:], abs=1e-8
    )


def test_a_port_that_is_used_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
        }
        for name, value in here.items():
            monkeypatch.setenv(name, value)
        assert run([*words(folder, "two.plan"), "--timeout", "5"]) not in (0, 1)
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert here["MASTER_PORT"] in errors[0]


@pytest.mark.parametrize("plan", ["one.plan", "two.plan"])
def test_a_folder_that_cannot_be_written_to_is_said_before_a_step(
    folder: Path, capfd: pytest.CaptureFixture[str], plan: str
) -> None:
    assert run(
        [*words(folder, plan), "--checkpoints", str(folder / "tokens.npy" / "kept")]
    ) not in (0, 1)
    shown = capfd.readouterr().err
    assert "tokens.npy/kept" in shown
    assert "step " not in shown
