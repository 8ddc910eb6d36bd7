"""``shardwright report``: the page, the JSON, the screen and the line of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from tests.files.saved import text_of_kind
from tests.report.page.page_numbers import require_numbers_of_document

SCREEN = ("simulated.json",)


def test_page_json_and_line_are_of_one_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, page = tmp_path / "best.json", tmp_path / "best.html"
    source.write_text(text_of_kind("grid"))
    assert run(["report", str(source), "-o", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    require_numbers_of_document(page.read_text(), document)
    assert document["command"] == "shardwright report best.json -o best.html"
    assert run(["report", str(source), "--quiet"]) == 0
    title, views = capsys.readouterr().out.rstrip("\n").split("\t")
    assert title == document["title"]
    assert views == "7 views"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["absent.json"], 7, "cannot read answer file absent.json"),
        (["best.json", "-o", "page.pdf"], 2, "end the name in .html"),
        (["best.json", "--tokens", "many"], 2, "--tokens"),
    ],
)
def test_errors(
    words: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("best.json").write_text(text_of_kind("grid"))
    assert run(["report", *words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "verb"), [("grid", "plan"), ("grid simulation", "simulate"), ("mixed", "plan")]
)
@pytest.mark.parametrize(
    ("field", "edited"),
    [
        ("step_time_s", lambda seconds: seconds * 1.01),
        ("breakdown_s", lambda parts: parts | {"gemm": parts["gemm"] * 1.01}),
        ("fits", lambda fits: not fits),
    ],
)
def test_a_prediction_of_another_version_is_refused(
    kind: str,
    verb: str,
    field: str,
    edited: Callable[[Any], Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Views show numbers of the file and of a new simulation, which must not contradict."""
    document = json.loads(text_of_kind(kind))
    document["prediction"][field] = edited(document["prediction"][field])
    file = tmp_path / "old.json"
    file.write_text(to_text(document))
    assert run(["report", str(file)]) == 7
    error, hint = capsys.readouterr().err.splitlines()
    assert f"not what this version simulates: {field}" in error
    assert f"write the file again with `shardwright {verb} ... -o FILE`" in hint
