"""``shardwright plan`` for cost, energy, a front and within a budget, as people and programs read
it, and ``check`` of it."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.hardware.catalog.list_prices import list_price
from shardwright.hardware.cluster_expression import parse_cluster
from tests.tiers import in_both

CLUSTER = "a100-sxm-40gb:1/2usd+v100-sxm-16gb:2/0.5usd"
MODEL = ["plan", "examples/tiny.json"]
JOB = ["--seq-len", "64", "--global-batch", "8"]


TEXTS: dict[tuple[str, ...], tuple[str, str]] = {}
"""What `plan` wrote and showed, by cluster and further flags: the same in any folder beside
others."""


def document_of(path: Path, *flags: str, cluster: str = CLUSTER) -> dict[str, Any]:
    """What `plan` with more flags writes."""
    asked = (cluster, *flags)
    if asked not in TEXTS:
        with redirect_stdout(StringIO()) as screen:
            assert run([*MODEL, cluster, *JOB, *flags, "-o", str(path)]) == 0
        TEXTS[asked] = path.read_text(encoding="utf-8"), screen.getvalue()
    path.write_text(TEXTS[asked][0], encoding="utf-8")
    found: dict[str, Any] = json.loads(TEXTS[asked][0])
    return found


@pytest.mark.parametrize(
    "flags",
    [
        ["--objective", "cost"],
        pytest.param(["--objective", "energy"], marks=pytest.mark.proof),
        ["--objective", "pareto"],
        pytest.param(["--budget", "3"], marks=pytest.mark.proof),
        pytest.param(
            ["--objective", "cost", "--budget", "3", "--pin", "tp=1"], marks=pytest.mark.proof
        ),
        ["--objective", "pareto", "--time-limit", "0"],
    ],
)
@in_both
@pytest.mark.parametrize(
    "cluster", [CLUSTER, pytest.param("a100-sxm-40gb:2/2usd", marks=pytest.mark.proof)]
)
def test_answers_are_made_again(
    flags: list[str], cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if cluster != CLUSTER:
        flags = [flag.replace("3", "4") if flag == "3" else flag for flag in flags]
    valued = document_of(tmp_path / "plan.json", *flags, cluster=cluster)["certificate"]["mixed"][
        "valued"
    ]
    assert 0 < valued["lower_bound"] <= valued["value"]
    assert run(["check", str(tmp_path / "plan.json")]) == 0
    assert "holds" in capsys.readouterr().out
    assert run(["explain", str(tmp_path / "plan.json")]) == 0
    assert "no plan of the space" in " ".join(capsys.readouterr().out.split())


def test_a_higher_rate_than_prices_show_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = document_of(tmp_path / "plan.json", "--objective", "cost")
    cell = document["certificate"]["mixed"]["valued"]["cells"][0]
    cell["rate"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    assert run(["check", str(tmp_path / "plan.json")]) == 7
    assert "do not show what it claims" in capsys.readouterr().err


def test_the_front_is_drawn_and_every_point_of_it_listed(
    tmp_path: Path,
) -> None:
    asked = ("--objective", "pareto")
    front = document_of(tmp_path / "plan.json", *asked)["certificate"]["mixed"]["valued"]["front"]
    shown = " ".join(TEXTS[CLUSTER, *asked][1].split())
    assert "Pareto front of the time and cost of a step" in shown
    assert "objective: pareto" in shown
    for number, point in enumerate(front, start=1):
        assert (
            f" {number} {point['step_time_s']:.4g} {point['value']:.4g} {point['lower_bound']:.4g} "
            in shown
        )


@pytest.mark.parametrize(
    ("cluster", "flags", "words", "code"),
    [
        (CLUSTER, ["--objective", "cots"], "unknown objective 'cots'", 2),
        (CLUSTER, ["--budget", "much"], "--budget 'much' is no number of dollars", 2),
        (CLUSTER, ["--budget", "0"], "--budget '0' is no number of dollars", 2),
        (CLUSTER, ["--budget", "0.5"], "no plan that fits rents for 0.5 dollars an hour", 6),
        (CLUSTER, ["--objective", "cost", "--use-all"], "--use-all", 2),
        ("h20:8", ["--objective", "cost"], "the cluster states no price of h20", 2),
        ("h20:8", ["--budget", "9"], "the cluster states no price of h20", 2),
        ("mi300x:8", ["--objective", "energy"], "the power of mi300x is not known", 2),
        (
            "h100-sxm:8/2usd",
            ["--objective", "cost", "--space", "joint"],
            "the joint space is searched for time alone",
            2,
        ),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(
    cluster: str, flags: list[str], words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*MODEL, cluster, *JOB, *flags]) == code
    # What takes over a second says first that it searches.
    *_, error, hint = capsys.readouterr().err.splitlines()
    assert words in error
    assert hint.startswith("hint: ")


def test_list_prices_are_those_of_compare_and_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MI300X states no price: cost is searched for at the price that `compare` shows."""
    known = list_price(parse_cluster("mi300x:1").node)
    assert known is not None
    found = document_of(tmp_path / "listed.json", "--objective", "cost", cluster="mi300x:1")
    given = document_of(
        tmp_path / "given.json", "--objective", "cost", cluster=f"mi300x:1/{known.usd_per_hour}usd"
    )
    assert (
        found["certificate"]["mixed"]["valued"]["value"]
        == given["certificate"]["mixed"]["valued"]["value"]
    )
    capsys.readouterr()
    assert run(["compare", "examples/tiny.json", "mi300x:1", "h100-sxm:1", *JOB, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert f"{known.usd_per_hour}" in json.dumps(compared)
    assert "price of mi300x" in " ".join(TEXTS["mi300x:1", "--objective", "cost"][1].split())
