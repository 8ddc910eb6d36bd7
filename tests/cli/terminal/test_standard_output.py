"""Standard output that is closed, full, left by its reader or poor in letters; files that are whole
or as they were."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.cli.terminal import standard_output
from shardwright.errors import DataError, OutputError, ResourceError, UsageError
from shardwright.files.canonical_json import parse_json
from shardwright.hardware.files.read_cluster_file import load_cluster

WORDS = ["catalog", "schedules"]


def shardwright(
    words: list[str], *, shell: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    line = " ".join([sys.executable, "-m", "shardwright", *words, shell])
    return subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )


@pytest.mark.parametrize(
    ("shell", "words"),
    [(">&-", b"standard output is closed"), ("> /dev/full", b"cannot write to standard output")],
)
def test_output_that_cannot_be_written_is_one_line(shell: str, words: bytes) -> None:
    done = shardwright(WORDS, shell=shell)
    assert done.returncode == OutputError.exit_code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert b"bug" not in done.stderr


@pytest.mark.parametrize("words", [WORDS, ["--help"], ["plan", "--help"]])
def test_a_reader_that_has_gone_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (standard_output.NOBODY_READS, b"")


def test_letters_that_standard_output_has_not_are_written_by_others() -> None:
    simulate = [
        "simulate",
        "llama-3.2-1b",
        "h100-sxm:8",
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--strategy",
        "dp8",
    ]
    done = shardwright(simulate, environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"#####" in done.stdout.decode("ascii").encode()


def test_errors_are_objects_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "simulate",
        "llama-3.2-1b",
        "h100-sxm:8",
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--strategy",
        "dp16",
        "--json",
    ]
    assert run(words) == 5
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert (error["kind"], error["exit_code"], error["rule"]) == (
        "StrategyError",
        5,
        "grid.devices",
    )
    assert said.err == f"error: {error['message']}\nhint: {error['hint']}\n"


def test_memory_that_is_not_there_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_words: list[str], _when_loaded: object) -> int:
        raise MemoryError("Unable to allocate 1.12 GiB")

    monkeypatch.setattr("shardwright.cli.main._dispatch", full)
    assert run(["plan"]) == ResourceError.exit_code
    assert "not enough memory" in capsys.readouterr().err


def test_a_file_is_written_whole_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    screen.save(path, "old")
    path.chmod(0o640)
    screen.save(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)

    def torn(self: Path, text: str, **_options: object) -> int:
        with self.open("w") as file:
            file.write(text[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(UsageError, match="No space left"):
        screen.save(path, "newer")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("refused", [errno.EBUSY, errno.EXDEV, errno.EACCES])
def test_a_file_that_nothing_can_replace_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """A file that is mounted by itself, or stands in a folder of somebody else."""
    path = tmp_path / "plan.json"
    path.write_text("old and longer")

    def busy(_self: Path, *_target: object, **_options: object) -> Path:
        raise OSError(refused, "not now")

    monkeypatch.setattr(Path, "replace", busy)
    screen.save(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(Path, "write_text", busy)
    with pytest.raises(UsageError, match="cannot write"):
        screen.save(path, "newer")


def test_half_a_character_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "simulate",
                "llama\udcff",
                "h100-sxm:8",
                "--seq-len",
                "1",
                "--global-batch",
                "1",
                "--strategy",
                "dp8",
            ]
        )
        == 2
    )
    assert "an argument is no text" in capsys.readouterr().err
    with pytest.raises(DataError, match="half of a character"):
        parse_json('{"name": "\\ud800"}', name="plan file", hint="")
    assert parse_json('{"name": "\\ud83d\\ude00"}', name="plan file", hint="") == {
        "name": "\U0001f600"
    }


def test_a_bandwidth_of_nothing_is_refused() -> None:
    with pytest.raises(Exception, match="bandwidth_gigabytes_per_s") as caught:
        load_cluster(
            "nodes: [{accelerator: h100-sxm, count: 2, nic: {bandwidth_gigabytes_per_s: 1.0e-300}}]"
        )
    assert type(caught.value).__name__ == "ClusterError"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_reported_where_a_terminal_shows_it(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = io.StringIO()
    monkeypatch.setattr(error, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", error)
    with screen.progress(clock=itertools.count(0.0, 10.0).__next__) as report:
        assert (report is not None) == is_terminal
        if report is not None:
            report("refine", 1, 2)
    assert error.getvalue() == "" or is_terminal
