"""`compare` and `guide` answer with the document that the command line prints with ``--json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `web`")

from shardwright.cli.main import run
from shardwright.errors import ShardwrightError, UsageError
from shardwright.search.search_time_limit import STOP
from shardwright.web.answer_question import VERBS, answer_question
from shardwright.web.web_application import BODIES
from tests.hardware.inventory_files import topo_matrix
from tests.report.page.page_numbers import require_numbers_of_document
from tests.tiers import in_both, many
from tests.web import fuzzed_questions
from tests.web.running_server import SMALL

ARGUMENTS = ("--seq-len", "4096", "--global-batch", "16")
STRATEGIES = ("tp2 dp4 mbs1 zero1", "tp8 mbs1 zero1")
PLAN = "plan own devices 8\n  grid samples 16 tp2 dp4 mbs1 zero1"
TOPOLOGY = topo_matrix(8, lambda _one, _other: "NV18")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions write the texts of their files into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stopped() -> Iterator[None]:
    """All searches of this process are stopped, as when the time of a question is over."""
    STOP.set()
    yield
    STOP.clear()


def answer(verb: str, **body: Any) -> tuple[dict[str, Any], str, list[str]]:
    """Document, page and progress lines of the answer to a question."""
    lines: list[str] = []
    texts = answer_question(
        verb,
        BODIES[verb].model_validate(body),
        progress=lambda text, done, total: lines.append(text),
    )
    return json.loads(texts.document), texts.page, lines


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The document that the command line prints."""
    assert run([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def printed_by(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    """The document that a command prints, in place of its text for people."""
    return printed(capsys, *shlex.split(command)[1:])


def saved_by(command: str, file: Path) -> dict[str, Any]:
    """The document of the file that a command writes."""
    assert run([*shlex.split(command)[1:], "--quiet", "-o", str(file)]) == 0
    document: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return document


def test_every_verb_has_a_body_and_is_fuzzed() -> None:
    assert set(VERBS) == set(BODIES) == set(fuzzed_questions.BODIES)
    for verb, body in fuzzed_questions.BODIES.items():
        BODIES[verb].model_validate(body)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"pins": {"tp": ["2", "4"]}, "precision": "fp8"}, ["--pin", "tp=2,4"]),
        ({"runtime": "torchtitan", "headroom": 0.2, "dropout": True}, ["--headroom", "20%"]),
        ({"cluster": "h100-sxm:2,network=0.5x", "space": "joint", "top": 0}, ["--space", "joint"]),
    ],
)
def test_the_command_of_a_plan_gives_the_same_plan(
    change: dict[str, Any], options: list[str], tmp_path: Path
) -> None:
    document, _, _ = answer("plan", request={**SMALL, **change})
    assert "-".join(options) in "-".join(shlex.split(document["command"]))
    beside = {name: document.pop(name) for name in ("command", "search_time_s", "unsearched")}
    assert saved_by(beside["command"], tmp_path / "plan.json") == document


@pytest.mark.parametrize("strategy", ["tp2 dp4 mbs1 zero1", "fsdp", PLAN])
def test_the_command_of_a_simulation_gives_the_same_simulation(
    strategy: str, tmp_path: Path
) -> None:
    request = {**SMALL, "train": "lora:r16", "reserve_fraction": 0.05}
    document, _, _ = answer("simulate", request=request, strategy=strategy)
    # The answer with its command is a file that the report reads.
    assert answer("report", plan=json.dumps(document))[0]["kind"] == "simulation"
    assert saved_by(document.pop("command"), tmp_path / "simulation.json") == document


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("simulate", {"request": {**SMALL, "max_devices": 4}, "strategy": "tp2"}),
        ("simulate", {"request": SMALL, "strategy": PLAN + "\n" * 5000}),
        ("plan", {"request": {**SMALL, "reserve_bytes": 2**30, "reserve_fraction": 0.1}}),
    ],
)
def test_a_question_that_no_command_line_asks_has_an_empty_command(
    verb: str, body: dict[str, Any]
) -> None:
    assert answer(verb, **body)[0]["command"] == ""


def test_strategies_are_compared_as_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["compare", SMALL["model"], "h100-sxm:8", "a100-sxm-80gb:8", *ARGUMENTS]
    for strategy in STRATEGIES:
        words += ["--strategy", strategy]
    costs = ["--tokens", "1000000000", "--price", "h100-sxm=2.5", "--price", "a100-sxm-80gb=1.5"]
    document, _, _ = answer(
        "compare",
        request=SMALL,
        strategies=list(STRATEGIES),
        clusters=["a100-sxm-80gb:8"],
        tokens=1e9,
        prices={"h100-sxm": 2.5, "a100-sxm-80gb": 1.5},
    )
    report, page, _ = answer("report", plan=json.dumps(document))
    command = document.pop("command")
    assert document == printed(capsys, *words, *costs) == printed_by(capsys, command)
    assert len(document["strategies"]) == 4
    assert report["kind"] == "comparison"
    assert page.startswith("<!doctype html>")


def test_without_strategies_the_best_plan_of_each_cluster_is_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clusters = ("h100-sxm:8", "a100-sxm-80gb:8")
    document, _, lines = answer("compare", request=SMALL, clusters=[clusters[1]])
    command = document.pop("command")
    assert document == printed(capsys, "compare", SMALL["model"], *clusters, *ARGUMENTS)
    assert document == printed_by(capsys, command)
    for cluster in clusters:
        assert any(line.startswith(f"{cluster}: ") for line in lines)


def test_a_given_cluster_is_compared_with_a_changed_one() -> None:
    document, _, _ = answer(
        "compare",
        request={**SMALL, "cluster": ""},
        files={"cluster": TOPOLOGY},
        cluster_nodes=2,
        cluster_accelerator="h100-sxm",
        strategies=["tp2 dp8 mbs1 zero1"],
        clusters=["cluster.yaml,network=2x"],
    )
    first, second = document["strategies"]
    assert second["prediction"]["step_time_s"] < first["prediction"]["step_time_s"]


@pytest.mark.parametrize(
    "change",
    [
        {"strategies": ["tp8", "/etc/hosts"]},
        {"strategies": ["plan.json"]},
        {"clusters": ["a100-sxm-80gb:8", "here.yaml"]},
        {"clusters": ["../there.json,network=2x"]},
        {"request": {**SMALL, "model": "/etc/hosts"}},
    ],
)
def test_no_part_of_a_comparison_is_a_path(change: dict[str, Any]) -> None:
    with pytest.raises(ShardwrightError, match="no request names a file"):
        answer("compare", **{"request": SMALL, **change})


def test_a_guide_is_the_document_and_the_page_of_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("guide", SMALL["model"], "h100-sxm:2", "--seq-len", "2048", "--global-batch", "16")
    request = {**SMALL, "cluster": "h100-sxm:2", "seq_len": 2048}
    document, page, lines = answer("guide", request=request)
    file = tmp_path / "guide.html"
    assert document == printed(capsys, *words, "-o", str(file))
    assert page == file.read_text("utf-8")
    assert lines.count("search") > 10


@in_both
def test_a_guide_for_serving_is_the_document_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = {**SMALL, "cluster": "h100-sxm:2", "seq_len": 1024}
    words = ("guide", SMALL["model"], "h100-sxm:2", "--serving", "--seq-len", "1024")
    for tokens, osl in ((256, ("--osl", "256")), (0, ()))[: many(1, 2)]:
        document, _, lines = answer("guide", request=request, serving=True, answer_tokens=tokens)
        assert document == printed(capsys, *words, "--global-batch", "16", *osl)
        assert len(lines) == 1 + len(document["rules"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_tokens": 16}, "answer_tokens is for serving"),
        ({"serving": True, "request": {**SMALL, "pins": {"tp": ["2"]}}}, "does not read pins"),
        ({"serving": True, "answer_tokens": 4096}, "--osl 4,096 of requests of 4,096 tokens"),
        ({"request": {**SMALL, "space": "joint"}}, "judges rules by searches of grids"),
    ],
)
def test_a_guide_that_cannot_be_made_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        answer("guide", **{"request": SMALL, **change})


@pytest.mark.parametrize("serving", [False, True])
@pytest.mark.usefixtures("stopped")
def test_a_stopped_guide_names_the_rules_that_it_did_not_judge(serving: bool) -> None:
    document, page, _ = answer("guide", request={**SMALL, "cluster": "h100-sxm:2"}, serving=serving)
    assert document["best"]["strategy"]
    assert document["rules"] == []
    assert document["skipped"]
    for name in document["skipped"]:
        assert name in page
    require_numbers_of_document(page, document)
