"""Reports of comparisons, advice and serving results: their numbers are those of the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from shardwright.api.report.report_content_of_answer_file import (
    add_what_if,
    make_report,
    report_document,
)
from shardwright.api.report.serving_latencies_content import POSITIONS, serving_command
from shardwright.cli.main import run
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.read_comparison_advice_and_serving import parse_other_answer
from shardwright.report.page.report_page import report_html, report_views
from tests.files.other_answers import OTHER_KINDS, SERVED, STRATEGIES
from tests.report.page.page_numbers import require_numbers_of_document

_VIEWS = {"strategies": "comparison", "clusters": "comparison", "advice": "advice"}


@pytest.fixture(scope="module")
def document_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """Function that makes the JSON documents of a kind's answer and of its report, once each."""
    made: dict[str, tuple[Any, Any]] = {}

    def document(kind: str) -> tuple[Any, Any]:
        if kind not in made:
            file = tmp_path_factory.mktemp("report") / "answer.json"
            file.write_text(to_text(OTHER_KINDS[kind]()))
            report = json.loads(to_text(report_document(make_report(file))))
            made[kind] = json.loads(file.read_text()), report
        return made[kind]

    return document


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_page_of_any_kind_has_the_numbers_of_its_json(
    kind: str, document_of: Callable[[str], tuple[Any, Any]]
) -> None:
    _, report = document_of(kind)
    page = require_numbers_of_document(report_html(report), report)
    assert len(page.cells) > 5
    (view,) = report_views(report)
    assert view.name == report["kind"] == _VIEWS.get(kind.split()[0], "serving")
    assert view.question
    assert view.reading


def test_compared_strategies_are_those_of_the_file(
    document_of: Callable[[str], tuple[Any, Any]],
) -> None:
    saved, report = document_of("strategies")
    rows = report["comparison"]["rows"]
    steps = sorted(one["prediction"]["step_time_s"] for one in saved["strategies"])
    assert [row["step_s"] for row in rows] == steps
    assert rows[0]["slower"] == 0.0
    assert rows[-1]["length"] == 1.0
    for row in rows:
        assert sum(row["part_seconds"]) == pytest.approx(row["step_s"])
        assert sum(row["part_lengths"]) == pytest.approx(row["length"])
    costs = {cost["usd_per_token"] for cost in saved["costs"]}
    assert {round(row["usd_per_million_tokens"] / 1e6, 15) for row in rows} == {
        round(cost, 15) for cost in costs
    }
    assert report["comparison"]["cheapest"] == 0
    searched = report["comparison"]["searched"]
    assert searched["step_s"] <= rows[0]["step_s"]
    assert searched["gain"] == pytest.approx(1 - searched["step_s"] / rows[0]["step_s"], abs=1e-9)
    assert len(rows) == len(STRATEGIES)


def test_unpriced_strategies_have_no_cost_and_misfits_no_best(
    document_of: Callable[[str], tuple[Any, Any]],
) -> None:
    _, unpriced = document_of("strategies without a price")
    assert unpriced["comparison"]["cheapest"] is None
    assert "dollars" not in report_views(unpriced)[0].reading
    _, misfits = document_of("strategies that do not fit")
    assert not any(row["fits"] for row in misfits["comparison"]["rows"])
    assert misfits["comparison"]["searched"] is None
    assert "No strategy fits" in report_views(misfits)[0].reading


def test_changes_are_those_of_the_advice(document_of: Callable[[str], tuple[Any, Any]]) -> None:
    saved, report = document_of("advice")
    advice = report["advice"]
    assert advice["step_s"] == saved["prediction"]["step_time_s"]
    for change, given in zip(advice["changes"], saved["changes"], strict=True):
        assert (change["name"], change["step_s"]) == (given["change"], given["step_time_s"])
        assert change["gain"] == pytest.approx(given["gain"], abs=1e-8)
        assert change["length"] * advice["step_s"] == pytest.approx(
            change["step_s"] * advice["length"], rel=1e-8
        )
        for setting in given["add"]:
            assert f"{setting['name']}={setting['value']}" in change["add"]
    assert advice["best"]["step_s"] == saved["best"]["step_time_s"]


def test_a_launch_that_cannot_run_has_no_step_and_no_gains(
    document_of: Callable[[str], tuple[Any, Any]],
) -> None:
    saved, report = document_of("advice on a launch that cannot run")
    advice = report["advice"]
    assert advice["step_s"] is None
    assert [rule["rule"] for rule in advice["broken"]] == [b["rule"] for b in saved["broken"]]
    assert {change["gain"] for change in advice["changes"]} == {None}
    assert "cannot run" in report_views(report)[0].reading


def test_latencies_are_those_of_the_simulation(
    document_of: Callable[[str], tuple[Any, Any]],
) -> None:
    saved, report = document_of("serving")
    serving = report["serving"]
    metrics = saved["metrics"]
    places = {share: place for place, share in enumerate(POSITIONS)}
    for row, series, name in zip(
        serving["latencies"], serving["chart"]["series"], ("ttft", "tpot", "e2e"), strict=True
    ):
        assert row["mean_s"] == metrics[name]["mean"]
        for share, percentile in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            assert series["values"][places[share]] == metrics[name][percentile]
        assert series["values"] == sorted(series["values"])
        assert series["values"][0] <= row["mean_s"] <= series["values"][-1]
    assert serving["tokens_per_s"] == metrics["tokens_per_second"]
    (pool,) = serving["pools"]
    assert sum(pool["shares"]) <= 1.0
    held = pool["weights"] + pool["activations"] + pool["others"] + pool["cache"]
    assert sum(pool["shares"]) == pytest.approx(held / pool["capacity"], abs=1e-6)
    assert mean(part["share"] for part in serving["parts"]) == pytest.approx(
        1 / len(serving["parts"])
    )


def test_other_load_is_twice_or_half_this_one(
    document_of: Callable[[str], tuple[Any, Any]],
) -> None:
    _, kept = document_of("serving")
    assert kept["serving"]["other"]["concurrency"] == 2 * SERVED.concurrency
    _, missed = document_of("serving that misses its targets")
    other = missed["serving"]["other"]
    assert other["concurrency"] == SERVED.concurrency // 2
    assert f"--concurrency {other['concurrency']}" in other["command"]
    _, stream = document_of("serving of a stream")
    assert stream["serving"]["other"] is None
    _, single = document_of("serving of single tokens")
    assert single["serving"]["latencies"][1]["mean_s"] is None
    assert [one["name"] for one in single["serving"]["chart"]["series"]] == [
        "time to first token",
        "time of a request",
    ]


def test_command_of_a_serving_request_simulates_it(
    document_of: Callable[[str], tuple[Any, Any]], tmp_path: Path
) -> None:
    saved, report = document_of("serving")
    file = tmp_path / "again.json"
    words = serving_command(SERVED).split()[1:]
    assert run([*words, "-o", str(file), "--quiet"]) == 0
    assert json.loads(file.read_text()) == saved
    other = report["serving"]["other"]
    assert run([*other["command"].split()[1:], "-o", str(file), "--quiet"]) == 0
    there = json.loads(file.read_text())["metrics"]
    assert other["tokens_per_s"] == there["tokens_per_second"]
    assert other["token_s"] == there["tpot"]["mean"]


@pytest.mark.parametrize(
    "words",
    [
        "compare llama-3.2-1b h100-sxm:2 --seq-len 2048 --global-batch 8 --strategy tp2",
        "advise examples/sft.yaml llama-3.1-8b h100-sxm:8",
        "serve-simulate llama-3.2-1b h100-sxm:1 --isl 64 --osl 4 --concurrency 2 --requests 4",
    ],
)
def test_output_file_is_what_json_prints(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "answer.json", tmp_path / "answer.html"
    assert run([*words.split(), "-o", str(file), "--json"]) == 0
    assert capsys.readouterr().out == file.read_text()
    assert parse_other_answer(file.read_text(), name="answer") is not None
    assert run(["report", str(file), "-o", str(page), "--quiet"]) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_only_a_plan_has_changed_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(to_text(OTHER_KINDS["serving"]()))
    assert run(["report", str(file), "--what-if"]) == UsageError.exit_code
    assert "--what-if searches the plans of a request" in capsys.readouterr().err


def test_costs_of_a_comparison_are_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text(to_text(OTHER_KINDS["serving"]()))
    with pytest.raises(UsageError, match="neither"):
        make_report(file, tokens=1e12)
    with pytest.raises(UsageError, match="--what-if is for plans and simulations"):
        add_what_if(make_report(file), file)
