"""The view of searched changes: numbers of its JSON, the strongest axis, the best position."""

from __future__ import annotations

import json
import shlex
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.report import what_if_content
from shardwright.api.report.report_content_of_answer_file import (
    add_what_if,
    make_report,
    report_document,
)
from shardwright.api.report.what_if_content import what_if_axes
from shardwright.api.searches.grid_search import plan
from shardwright.api.what_if.axes_of_request import AXES, own_value
from shardwright.api.what_if.search_best_plans_along_axis import can_repeat_search
from shardwright.cli.main import run
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import file_text, stored_answer
from shardwright.report.page.markup.page_frame import page_html
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.report_page import SCRIPTS, report_html, report_views
from shardwright.report.page.views.what_if_view import what_if_view
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from tests.report.page.page_numbers import require_numbers_of_document

PINS = tuple(
    (axis, (value,))
    for axis, value in (
        *(("tp", "1"), ("cp", "1"), ("pp", "1"), ("mbs", "1"), ("zero", "1"), ("offload", "0")),
        *(("recompute", "none"), ("tp_overlap", "none")),
    )
)
SMALL = Request(
    model="llama-3.2-1b", cluster="h100-sxm:16", seq_len=2048, global_batch=32, pins=PINS
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plan file of a small request."""
    path = tmp_path_factory.mktemp("what_if") / "best.json"
    path.write_text(file_text(stored_answer(plan(SMALL, sensitive=False)), path))
    return path


@pytest.fixture(scope="module")
def page(file: Path) -> Path:
    """Page of its report with searched changes, as the verb writes it."""
    return file.with_name("best.html")


@pytest.fixture(scope="module")
def document(file: Path, page: Path) -> Any:
    """JSON document of that report."""
    words = ["report", str(file), "--what-if", "--tokens", "1T", "-o", str(page), "--json"]
    with redirect_stdout(StringIO()) as printed:
        assert run(words) == 0
    return json.loads(printed.getvalue())


def page_of_view(content: Any) -> str:
    """Page with this view alone, whose numbers were compared; returns its screen text."""
    document = json.loads(
        to_text({"title": "t", "version": "v", "command": "c", "what_if": content})
    )
    view = what_if_view(document)
    require_numbers_of_document(page_html(document, [view], scripts=SCRIPTS), document)
    templates = (view.reading, view.next_change)
    return "\n".join(sentence_text(document, one) for one in templates if one)


def test_numbers_are_values_of_the_json(document: Any) -> None:
    page = require_numbers_of_document(report_html(document), document)
    shown = {pointer for pointer, _, _ in page.leaves} | {rows for rows, *_ in page.cells}
    for number, axis in enumerate(document["what_if"]["axes"]):
        pointer = f"/what_if/axes/{number}"
        assert f"{pointer}/positions" in shown
        assert f"{pointer}/positions/{axis['base']}/step_s" in shown
        assert (f"{pointer}/changes" in shown) == bool(axis["changes"])


def test_positions_are_around_the_request(document: Any) -> None:
    content = document["what_if"]
    assert [axis["key"] for axis in content["axes"]] == list(AXES)
    assert content["complete"]
    assert content["searches"] == 9 * len(AXES)
    assert content["left_out"] == []
    answer = document["answer"]
    for axis in content["axes"]:
        base = axis["positions"][axis["base"]]
        assert base["step_s"] == answer["step_s"]
        assert base["usd_per_million_tokens"] == pytest.approx(answer["usd_per_million_tokens"])
        assert base["memory_share"] == answer["memory_share"]
        assert base["step_gain"] == base["rate_gain"] == base["cost_gain"] == 0
        assert shlex.split(base["command"])[:4] == [
            *("shardwright", "plan", "llama-3.2-1b", "h100-sxm:16")
        ]
        amounts = [position["amount"] for position in axis["positions"]]
        assert amounts == sorted(amounts)
        for position in axis["positions"]:
            if position["fits"]:
                assert 1 + position["rate_gain"] == pytest.approx(position["rate"] / base["rate"])
        for change in axis["changes"]:
            assert amounts[0] <= change["low"] < change["high"] <= amounts[-1]
            assert change["low_plan"] != change["high_plan"]
        assert len(axis["chart"]["marks"]) == len(axis["changes"])


def test_strongest_axis_and_best_position(document: Any) -> None:
    content = document["what_if"]

    def gains(axis: Any) -> list[float]:
        return [one["rate_gain"] for one in axis["positions"] if one["fits"]]

    strongest = max(content["axes"], key=lambda axis: max(map(abs, gains(axis))))
    assert content["axes"][content["strongest"]] == strongest
    best = max(content["axes"], key=lambda axis: max(gains(axis)))
    axis = content["axes"][content["best"]]
    assert max(gains(axis)) == max(gains(best))
    [view] = [view for view in report_views(document) if view.name == "what_if"]
    reading, change = (
        sentence_text(document, template) for template in (view.reading, view.next_change)
    )
    assert reading.startswith(f"The {strongest['name']} changes the throughput of a device most")
    assert axis["positions"][axis["highest"]]["command"] in change


def test_without_searches_the_page_names_the_command(file: Path, document: Any) -> None:
    report = make_report(file, tokens=1e12, prices={"": 2.0})
    assert report.what_if is None
    words = shlex.split(report.what_if_command)
    assert words == [*shlex.split(report.command), "--what-if"]
    assert words[3:7] == ["--tokens", "1000000000000", "--price", "2.0"]
    plain = report_document(report)
    page = require_numbers_of_document(report_html(plain), plain)
    shown = {pointer for pointer, _, _ in page.leaves}
    assert "/what_if_command" in shown
    assert 'id="what_if"' not in report_html(plain)
    assert document["what_if_command"] == ""
    assert document["command"].endswith("--what-if")


def test_nothing_fits_on_a_mixed_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors stand for quantities that differ between devices."""
    monkeypatch.setattr(
        what_if_content, "usual_values", lambda request, axis, prices: (own_value(request, axis),)
    )
    request = Request(
        model="llama-3.1-405b",
        cluster="h100-sxm:2+a100-sxm-80gb:2",
        seq_len=2048,
        global_batch=4,
        headroom=0.99,
    )
    content = to_json_value(what_if_axes(request), names={})
    assert content["strongest"] is content["best"] is None
    forms = {axis["key"]: axis["form"] for axis in content["axes"]}
    assert forms["memory"] == forms["price"] == "factor"
    assert forms["devices"] == "count"
    assert all(axis["chart"] is None for axis in content["axes"])
    assert page_of_view(content).startswith("No plan fits at any position.")


def test_nothing_fits_at_the_request() -> None:
    request = Request(
        model="llama-3.1-8b",
        cluster="h100-sxm:1",
        seq_len=8192,
        global_batch=4,
        pins=tuple((axis, values) for axis, values in PINS if axis != "tp"),
    )
    content = to_json_value(what_if_axes(request), names={})
    text = page_of_view(content)
    assert "nothing fits at the request itself" in text
    [network] = content["left_out"]
    assert "one scale-up island" in network["why"]
    axis = content["axes"][content["best"]]
    assert axis["positions"][axis["base"]]["plan"].startswith("nothing fits: ")
    assert axis["positions"][axis["highest"]]["rate_gain"] is None
    assert axis["positions"][axis["highest"]]["command"] in text


def test_stopped_searches() -> None:
    """Ctrl-C after some searches: the rest is missing, and the page says so."""

    def stop(phase: str, done: int, total: int) -> None:
        if done == 12:
            STOP.set()

    try:
        content = to_json_value(what_if_axes(SMALL, progress=stop), names={})
    finally:
        STOP.clear()
    assert not content["complete"]
    assert content["searches"] == 12 + len(AXES)
    assert [len(axis["positions"]) for axis in content["axes"]] == [9, 5, 1, 1, 1, 1]
    assert content["left_out"] == []
    assert "The searches were stopped" in page_of_view(content)


def test_searches_that_never_began() -> None:
    STOP.set()
    try:
        content = to_json_value(what_if_axes(SMALL), names={})
    finally:
        STOP.clear()
    assert content["axes"] == []
    assert len(content["left_out"]) == len(AXES)
    text = page_of_view(content)
    assert text.startswith("No plan fits")


def test_a_request_at_its_best(document: Any) -> None:
    content = document["what_if"]
    best = content["axes"][content["best"]]
    changed = {**best, "highest": best["base"]}
    axes = [changed if one is best else one for one in content["axes"]]
    assert "none along these axes" in page_of_view({**content, "axes": axes})


def test_long_searches_are_not_repeated() -> None:
    joint = replace(SMALL, space="joint", pins=())
    with pytest.raises(UsageError, match="several joint searches"):
        what_if_axes(joint)
    assert not can_repeat_search(joint)
    assert not can_repeat_search(replace(SMALL, objective="pareto"))
    assert can_repeat_search(SMALL)


def test_the_verb_writes_the_view(page: Path, document: Any) -> None:
    require_numbers_of_document(page.read_text(), document)


@pytest.mark.proof
def test_the_document_is_that_of_the_verb(file: Path, document: Any) -> None:
    report = add_what_if(make_report(file, tokens=1e12), file)
    assert report_document(report)["what_if"] == document["what_if"]
