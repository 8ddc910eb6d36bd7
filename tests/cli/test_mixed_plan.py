"""``shardwright plan`` on a mixed cluster, as a person and as a program read it, and ``check`` of
what it wrote."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run

WORDS = [
    "plan",
    "examples/tiny.json",
    "a100-sxm-40gb:2+v100-sxm-16gb:2",
    "--seq-len",
    "64",
    "--global-batch",
    "8",
]


@pytest.fixture(scope="module")
def shown() -> str:
    """What `plan` prints."""
    with redirect_stdout(StringIO()) as screen:
        assert run(WORDS) == 0
    return screen.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "plan.json"
    assert run([*WORDS, "-o", str(path)]) == 0
    return path


def test_the_answer_is_shown_with_its_gap_and_each_part_alone(shown: str) -> None:
    for words in (
        "Each part of the cluster alone",
        "2 x a100-sxm-40gb",
        "2 x v100-sxm-16gb",
        "lower bound",
        "subspaces closed by dual prices",
    ):
        assert words in shown


def test_options_that_were_not_searched_are_named_with_the_one_that_gains_most(
    shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Options that change no numerics and were not searched" in shown
    assert (
        run([*WORDS, "--runtime", "megatron-core loss=plain", "--pin", "grad_check=on", "--json"])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    fixed, best = dict(document["unsearched"]["fixed"]), document["unsearched"]["best"]
    assert fixed["grad_overlap"] == "on"
    assert {"loss", "grad_check", "tp_overlap"}.isdisjoint(fixed)
    assert best is None or best["step_time_s"] < document["certificate"]["best_s"]


def test_a_file_holds_frames_and_prices_and_checks(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = json.loads(written.read_text(encoding="utf-8"))["certificate"]["mixed"]
    assert [one["name"] for one in part["alone"]] == ["a100-sxm-40gb", "v100-sxm-16gb"]
    assert all(len(dual["devices"]) == 2 for closed in part["closed"] for dual in closed["duals"])
    assert run(["check", str(written)]) == 0
    assert "holds" in capsys.readouterr().out


def test_prices_that_close_nothing_are_refused(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(written.read_text(encoding="utf-8"))
    for dual in document["certificate"]["mixed"]["closed"][0]["duals"]:
        dual["devices"] = [1000.0 * price + 1000.0 for price in dual["devices"]]
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document), encoding="utf-8")
    assert run(["check", str(changed)]) == 7
    assert "do not close it" in capsys.readouterr().err


TEXTS: dict[tuple[str, ...], str] = {}
"""What `plan` wrote, by its further flags: the same in any folder beside others."""


def document_of(path: Path, *flags: str) -> dict[str, Any]:
    """What `plan` with more flags writes."""
    if flags not in TEXTS:
        assert run([*WORDS, *flags, "--quiet", "-o", str(path)]) == 0
        TEXTS[flags] = path.read_text(encoding="utf-8")
    path.write_text(TEXTS[flags], encoding="utf-8")
    found: dict[str, Any] = json.loads(TEXTS[flags])
    return found


@pytest.mark.parametrize(
    "flags",
    [
        ["--time-limit", "0"],
        pytest.param(
            ["--pin", "tp=1", "--pin", "mbs=2", "--exclude", "schedule=interleaved-1f1b"],
            marks=pytest.mark.proof,
        ),
        ["--pin", "recompute_norms=on", "--top", "0"],
    ],
)
def test_stopped_and_pinned_answers_are_made_again(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document_of(tmp_path / "plan.json", *flags)
    assert run(["check", str(tmp_path / "plan.json")]) == 0
    assert "holds" in capsys.readouterr().out


def test_a_search_that_is_stopped_says_what_is_proven(written: Path, tmp_path: Path) -> None:
    whole, stopped = (
        json.loads(written.read_text(encoding="utf-8")),
        document_of(tmp_path / "plan.json", "--time-limit", "0"),
    )
    one, other = whole["certificate"], stopped["certificate"]
    assert 0 < other["lower_bound_s"] <= one["best_s"] <= other["best_s"]
    assert other["stopped_at"] == 1
    assert other["mixed"]["lower_bound_s"] == 0.0
    assert other["gap"] == pytest.approx(1 - other["lower_bound_s"] / other["best_s"])


def test_an_edited_stop_is_refused(tmp_path: Path) -> None:
    document = document_of(tmp_path / "plan.json", "--time-limit", "0")
    document["certificate"]["mixed"]["composed_stopped_at"] += 1
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    assert run(["check", str(tmp_path / "plan.json")]) == 7


def test_next_best_pipelines_are_other_ones_and_are_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = document_of(tmp_path / "plan.json", "--top", "5", "--pin", "mbs=1,2")
    part = document["certificate"]["mixed"]
    steps, words = (
        [runner[key] for runner in part["runners"]] for key in ("step_time_s", "pipelines")
    )
    assert 2 <= len(words) <= 5
    assert steps == sorted(steps)
    assert steps[0] >= document["certificate"]["best_s"]
    assert len({*words, part["pipelines"]}) == len(words) + 1
    assert not any("mbs4" in one or "mbs8" in one for one in words)
    assert run(["explain", str(tmp_path / "plan.json")]) == 0
    assert "Pipelines of the plan, and the next best compositions found" in capsys.readouterr().out
    assert (
        document_of(tmp_path / "plan.json", "--top", "0")["certificate"]["mixed"]["runners"] == []
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pin", "pp=2"], "pp cannot be pinned or excluded on a mixed cluster"),
        (["--pin", "zero=0"], "all pipelines of a mixed cluster have zero=1,2,3"),
        (["--exclude", "zero=1,2,3"], "all pipelines of a mixed cluster have zero=1,2,3"),
        (["--pin", "tp=16"], "no stage inside a node has the pinned values: tp=16"),
        (["--pin", "tp=x"], "tp=x is not a whole number from 1"),
        (["--pin", "nothing=1"], "unknown axis 'nothing'"),
        (["--pin", "tp_overlap=maybe"], "tp_overlap=maybe is not known"),
        (["--use-all"], "--use-all is of uniform clusters"),
        (["--space", "joint"], "the joint space is of uniform clusters"),
        (["--space", "exhaustive"], "the exhaustive space is of uniform clusters"),
        (["--space", "nothing"], "unknown space 'nothing'"),
    ],
)
def test_what_a_mixed_search_does_not_have_is_said_in_a_line(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*WORDS, *flags]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert words in error
    assert hint.startswith("hint: ")


def test_pictures_and_traces_say_the_kind_of_each_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, svg, trace = (tmp_path / name for name in ("plan.json", "plan.svg", "trace.json"))
    part = document_of(plan, "--pin", "tp=1", "--pin", "mbs=2")
    names = [one["name"] for one in part["prediction"]["kinds"]]
    assert names == ["a100-sxm-40gb", "v100-sxm-16gb"]
    capsys.readouterr()
    assert run(["draw", str(plan), "-o", str(svg), "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert (
        {row["kind"] for row in drawn["rows"]}
        == {row["kind"] for row in drawn["step"]["rows"]}
        == set(names)
    )
    assert all(name in svg.read_text(encoding="utf-8") for name in names)
    assert run(["draw", str(plan)]) == 0
    shown = capsys.readouterr().out
    for title in ("One step on", "Memory of each device"):
        lines = shown.split(title)[1].split("\n\n")[0]
        assert all(name in lines for name in names)
    assert run(["trace", str(plan), "-o", str(trace), "--json"]) == 0
    labels = [
        e["args"]["labels"]
        for e in json.loads(trace.read_text())["traceEvents"]
        if e["name"] == "process_labels"
    ]
    assert {label.rpartition(" on ")[2] for label in labels} == set(names)


def test_explain_says_what_devices_are_worth_and_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    certificate = document_of(plan, "--pin", "tp=1", "--pin", "mbs=1")["certificate"]
    assert any(one["worth_s"] > 0 for one in certificate["mixed"]["alone"])
    assert run(["explain", str(plan)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "a device is worth",
        "Where the time of each kind of device goes",
        "busy",
        "best step alone",
    ):
        assert words in shown
