"""``shardwright report``: the page, the JSON, the screen and the line of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document
from tests.cli.answers import ANSWER
from tests.report.page.page_numbers import require_numbers_of_document

SCREEN = ("alone.json",)


def test_page_json_and_line_are_of_one_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, page = tmp_path / "best.json", tmp_path / "best.html"
    source.write_text(to_text(plan_document(ANSWER)))
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
    Path("best.json").write_text(to_text(plan_document(ANSWER)))
    assert run(["report", *words]) == code
    assert message in capsys.readouterr().err
