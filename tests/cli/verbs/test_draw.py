"""``shardwright draw``: from a notation, a plan file or a grid."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document
from tests.cli.answers import ANSWER

ZOO = Path(__file__).parents[2] / "strategy" / "zoo"
MODEL = "llama-3.1-405b"


def test_notation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = str(ZOO / "09-llama405b.plan")
    assert run(["draw", plan, MODEL]) == 0
    assert "llama405b: 16,384 devices, 128 blocks, 128 stages" in capsys.readouterr().out
    assert run(["draw", plan, MODEL, "-o", str(tmp_path / "plan.svg")]) == 0
    assert capsys.readouterr().out == ""
    assert ET.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    assert run(["draw", plan, MODEL, "--quiet"]) == 0
    assert capsys.readouterr().out == "16 rows, 128 columns, 128 cells\n"


def test_a_grid_is_the_plan_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", "16384", "--global-batch", "2048", "--json"]
    assert run(["draw", "tp8 sp pp16 vpp8 mbs1 zero1", MODEL, *words]) == 0
    grid = json.loads(capsys.readouterr().out)
    assert run(["draw", str(ZOO / "09-llama405b.plan"), MODEL, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert grid.pop("name") != plan.pop("name")
    assert grid == plan


def test_plan_file_names_its_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text(to_text(plan_document(ANSWER)))
    assert run(["draw", str(tmp_path / "best.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "best"
    assert (
        sum(row["count"] for row in document["rows"]) == document["devices"] == ANSWER.grid.devices
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["absent.plan", MODEL], 7, "cannot read plan absent.plan: No such file or directory"),
        (["tp8"], 2, "a plan in notation needs the model it is for"),
        (["tq8", MODEL], 5, "unknown word 'tq8' in a grid"),
        (["tp8 dp2", MODEL, "--devices", "64"], 5, "the grid has 16 devices, --devices says 64"),
        (
            [str(ZOO / "01-grid3d.plan"), MODEL],
            5,
            "32 of 126 blocks are in the stages [stage.coverage]",
        ),
        (
            [str(ZOO / "01-grid3d.plan"), MODEL, "--devices", "64"],
            2,
            "--devices and --global-batch are for grids",
        ),
        (["tp8", "no-such-model"], 3, "no model is called 'no-such-model'"),
    ],
)
def test_errors(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["draw", *words]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error


@pytest.mark.parametrize(("text", "code"), [("plan p\n", 5), ("{}", 7), ("{", 7), ("", 5)])
def test_files_that_say_no_plan(
    text: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "some.plan").write_text(text)
    assert run(["draw", str(tmp_path / "some.plan"), MODEL]) == code
    assert capsys.readouterr().err.startswith("error: ")
