"""``shardwright guide``: screens, files, and errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from tests.report.page.page_numbers import require_numbers_of_document
from tests.tiers import in_both, in_proof

SCREEN = (
    "llama-3.2-1b",
    "h100-sxm:8",
    "--serving",
    "--seq-len",
    "1024",
    "--global-batch",
    "16",
)
TRAINING = ("guide", "llama-3.2-1b", "h100-sxm:2", "--seq-len", "2048", "--global-batch", "16")
CASES = {
    "training": TRAINING,
    "serving": ("guide", *SCREEN),
    "experts served": (
        "guide",
        "deepseek-v2-lite",
        "h100-sxm:2",
        "--serving",
        "--seq-len",
        "1k",
        "--global-batch",
        "8",
    ),
    "does not fit": (
        "guide",
        "llama-3.1-70b",
        "h100-sxm:1",
        "--seq-len",
        "2048",
        "--global-batch",
        "16",
    ),
}


WRITTEN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
"""The document and the files of a case, which are made once."""
FILES = ("guide.html", "SKILL.md")


def written(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a case prints as JSON; its page goes to guide.html, its skill to SKILL.md."""
    if case not in WRITTEN:
        code = 6 if case == "does not fit" else 0
        asked = ["-o", str(folder / "guide.html"), "--agent", str(folder), "--json"]
        assert run([*CASES[case], *asked]) == code
        document = json.loads(capsys.readouterr().out)
        files = {name: folder / name for name in FILES}
        WRITTEN[case] = (
            document,
            {name: path.read_text() for name, path in files.items() if path.exists()},
        )
    document, texts = WRITTEN[case]
    for name, text in texts.items():
        (folder / name).write_text(text)
    return document


@in_both
@pytest.mark.parametrize("case", CASES)
def test_each_number_of_the_page_is_of_the_document(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, code = tmp_path / "guide.html", 6 if case == "does not fit" else 0
    document = written(case, tmp_path, capsys)
    require_numbers_of_document(page.read_text(), document)
    assert document["schema"] == "shardwright.guide"
    for rule in document["rules"]:
        for side in rule["break_even"]["sides"] if rule["break_even"] else ():
            assert side["plan"]["command"] in page.read_text(), rule["name"]
    if case != "experts served" and not in_proof():
        return
    assert run([*CASES[case], "-o", str(tmp_path / "guide.json"), "--quiet"]) == code
    assert json.loads((tmp_path / "guide.json").read_text()) == document
    assert capsys.readouterr().out.count("\n") == 1


def test_a_rule_that_loses_says_so_on_screen_and_in_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = written("training", tmp_path, capsys)
    losing = [
        rule["verdict"]
        for rule in document["rules"]
        if rule["verdict"] and rule["verdict"]["outcome"] == "loses"
    ]
    assert losing
    assert run([*TRAINING, "-o", str(tmp_path / "guide.md")]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "guide.md").read_text()
    for name in ("guide-rules.svg", "guide-break-evens.svg"):
        assert f"]({name})" in page
        assert (tmp_path / name).read_text().startswith("<svg xmlns=")
    for verdict in losing:
        assert f"{verdict['advice']} {verdict['sentence']}" in screen
        assert f"| {verdict['advice']} | {verdict['sentence']}" in page


def test_time_limit_names_the_rules_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TRAINING, "--time-limit", "0"]) == 0
    text = capsys.readouterr().out
    assert "Does it fit?" in text
    assert "Left out by --time-limit: training_compute, data_parallelism_first" in text


def test_the_commands_of_the_skill_file_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for case in ("training", "serving"):
        document = written(case, tmp_path, capsys)
        text = (tmp_path / "SKILL.md").read_text()
        block = re.search(r"```console\n(.*?)```", text, flags=re.DOTALL)
        assert block is not None
        commands = block[1].splitlines()
        assert len(commands) >= 2
        assert text.startswith("---\nname: ")
        for command in commands:
            words = shlex.split(command)
            assert words[0] == "shardwright"
            assert run([*words[1:], "--json"]) == 0, command
            answer = json.loads(capsys.readouterr().out)
            if words[1] == "plan":
                assert answer["prediction"]["step_time_s"] == document["best"]["step_s"]
            if words[1] == "simulate":
                assert answer["step_time_s"] == document["best"]["step_s"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([*TRAINING, "--osl", "16"], 2, "--osl is for --serving"),
        (["guide", *SCREEN, "--pin", "tp=2"], 2, "are for plans of training"),
        (["guide", *SCREEN, "--osl", "1024"], 2, "--osl 1,024 of requests of 1,024 tokens"),
        ([*TRAINING, "-o", "guide.txt"], 2, "is no form of a guide"),
        ([*TRAINING, "--agent", "nowhere/deep"], 2, "cannot write into nowhere/deep"),
        (
            ["guide", "llama-3.2-1b", "h100-sxm:8+a100-sxm-80gb:8", *TRAINING[3:]],
            2,
            "the guide judges rules by searches of grids",
        ),
        (["guide", "no-model", *TRAINING[2:]], 3, "no model is called"),
    ],
)
def test_bad_words(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    error = capsys.readouterr().err
    assert message in error
    assert "hint: " in error
