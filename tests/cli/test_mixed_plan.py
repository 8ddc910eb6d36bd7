"""``shardwright plan`` on a mixed cluster, as a person and as a program read it, and ``check`` of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run

WORDS = ["plan", "examples/tiny.json", "a100-sxm-40gb:2+v100-sxm-16gb:2", "--seq-len", "64", "--global-batch", "8"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "plan.json"
    assert run([*WORDS, "-o", str(path)]) == 0
    return path


def test_the_answer_is_shown_with_its_gap_and_each_part_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(WORDS) == 0
    shown = capsys.readouterr().out
    for words in ("Each part of the cluster alone", "2 x a100-sxm-40gb", "2 x v100-sxm-16gb", "lower bound", "frames of the space closed"):
        assert words in shown


def test_a_file_holds_frames_and_prices_and_checks(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = json.loads(written.read_text(encoding="utf-8"))["certificate"]["mixed"]
    assert [one["name"] for one in part["alone"]] == ["a100-sxm-40gb", "v100-sxm-16gb"]
    assert all(len(dual["devices"]) == 2 for closed in part["closed"] for dual in closed["duals"])
    assert run(["check", str(written)]) == 0
    assert "holds" in capsys.readouterr().out


def test_prices_that_close_nothing_are_refused(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(written.read_text(encoding="utf-8"))
    for dual in document["certificate"]["mixed"]["closed"][0]["duals"]:
        dual["devices"] = [1000.0 * price + 1000.0 for price in dual["devices"]]
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document), encoding="utf-8")
    assert run(["check", str(changed)]) == 7
    assert "do not close it" in capsys.readouterr().err


def test_axes_are_not_pinned_on_a_mixed_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORDS, "--pin", "tp=1"]) == 2
    assert "no axes to pin" in capsys.readouterr().err
