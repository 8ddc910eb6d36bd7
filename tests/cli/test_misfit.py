"""What does not fit is said in every form, and told by the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run

ASKED = ["llama-3.1-8b", "h100-sxm:8", "--seq-len", "8192", "--global-batch", "256"]
FITS, LARGE = "tp2 sp dp4 zero1", "tp1 dp8 zero0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A simulation file of each strategy."""
    folder = tmp_path_factory.mktemp("misfit")
    paths = {text: str(folder / f"{number}.json") for number, text in enumerate((FITS, LARGE))}
    codes = [
        run(["simulate", *ASKED, "--strategy", text, "-o", path, "--quiet"])
        for text, path in paths.items()
    ]
    assert codes == [0, 6]
    return paths


@pytest.mark.parametrize("form", [[], ["--quiet"], ["--json"]])
@pytest.mark.parametrize("text", [FITS, LARGE])
def test_the_exit_code_tells(
    text: str, form: list[str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = 0 if text == FITS else 6
    verbs = (
        ["simulate", *ASKED, "--strategy", text],
        ["explain", files[text]],
        ["compare", *ASKED, "--strategy", text],
        ["check", files[text]],
    )
    assert [run([*words, *form]) for words in verbs] == [code] * len(verbs)


@pytest.mark.parametrize(
    "words",
    [["simulate", *ASKED, "--strategy"], ["compare", *ASKED, "--strategy"], ["explain"], ["why"]],
)
def test_quiet_says_that_it_does_not_fit(
    words: list[str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (FITS, LARGE):
        given = (
            [files[FITS], text]
            if words == ["why"]
            else [files[text]]
            if words == ["explain"]
            else [text]
        )
        run([*words, *given, "--quiet"])
        seconds, strategy, *misfit = capsys.readouterr().out.rstrip("\n").split("\t")
        assert float(seconds.removesuffix(" s")) > 0
        assert ("dp8" in strategy) == (text == LARGE)
        assert any(one.startswith("DOES NOT FIT: stage 0 by ") for one in misfit) == (text == LARGE)


def test_the_best_of_a_comparison_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Data parallelism alone is the faster one, and has no room."""
    words = ["compare", *ASKED, "--strategy", LARGE, "--strategy", FITS]
    assert run([*words, "--json"]) == 0
    steps = [
        one["prediction"]["step_time_s"]
        for one in json.loads(capsys.readouterr().out)["strategies"]
    ]
    assert steps[0] < steps[1]
    assert run([*words, "--quiet"]) == 0
    assert "tp2" in capsys.readouterr().out
    assert run(words) == 0
    first, second = [
        line for line in capsys.readouterr().out.splitlines() if line[:2] in ("1 ", "2 ")
    ]
    assert ("yes" in first, "no" in second, "-" in second) == (True, True, True)


@pytest.mark.parametrize("text", [FITS, LARGE])
def test_an_export_of_what_does_not_fit_says_so(
    text: str, files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        run(
            [
                "export",
                files[text],
                "--to",
                "megatron",
                "--allow-lossy",
                "--quiet",
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    assert ("note: the plan DOES NOT FIT: stage 0 by " in capsys.readouterr().err) == (
        text == LARGE
    )


def test_check_says_so_on_standard_error(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["check", files[LARGE], "--quiet"]) == 6
    assert "more than its" in capsys.readouterr().err
