"""Views of the timeline and of communication: their numbers add up, for every kind of file."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree.ElementTree import Element, tostring

import pytest

from shardwright.api.report import pipeline_timeline_content
from shardwright.api.report.bubble_causes import idle_pieces
from shardwright.api.report.pipeline_timeline_content import pipeline_timeline
from shardwright.api.report.simulate_stored_plan import simulate_stored
from shardwright.report.page.charts.device_map import pattern_devices
from shardwright.report.page.report_page import VIEWS, report_html
from shardwright.report.page.views.simulated_change_sentence import change_sentence
from tests.report.page.page_numbers import require_numbers_of_document
from tests.report.page.report_documents import FILES, simulated_document, stored

CAUSES = (
    "warm_up_s",
    "cool_down_s",
    "order_s",
    "message_s",
    "reduction_s",
    "gather_s",
    "imbalance_s",
)

every_file = pytest.mark.parametrize("name", FILES)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def spans(track: Any) -> list[tuple[int, int]]:
    """(start, end) of each span in ticks, which are checked to be in order."""
    found, end = [], 0
    for gap, length in zip(numbers(track["gaps"]), numbers(track["lengths"]), strict=True):
        assert gap >= 0
        assert length >= 0
        found.append((end + gap, end + gap + length))
        end = found[-1][1]
    return found


@every_file
def test_numbers_are_values_of_the_json(name: str) -> None:
    document = simulated_document(name)
    page = require_numbers_of_document(report_html(document), document)
    rows = {rows for rows, *_ in page.cells}
    assert {"/timeline/causes", "/timeline/rows"} <= rows
    assert ("/communication/groups" in rows) == bool(document["communication"]["groups"])


@every_file
def test_busy_and_idle_seconds_of_a_row_are_the_step(name: str) -> None:
    timeline = simulated_document(name)["timeline"]
    assert timeline["end_s"] + timeline["jitter_s"] == pytest.approx(timeline["step_s"])
    for row in timeline["rows"]:
        assert sum(row[cause] for cause in CAUSES) == pytest.approx(row["idle_s"], abs=1e-9)
        assert row["busy_s"] + row["idle_s"] == pytest.approx(timeline["end_s"], rel=1e-7)


@every_file
def test_causes_are_the_mean_of_all_devices(name: str) -> None:
    timeline = simulated_document(name)["timeline"]
    assert len(timeline["rows"]) == timeline["classes"]
    devices = sum(row["devices"] for row in timeline["rows"])
    for cause, column in zip(timeline["causes"], CAUSES, strict=True):
        mean = sum(row["devices"] * row[column] for row in timeline["rows"]) / devices
        assert cause["seconds"] == pytest.approx(mean, rel=1e-6, abs=1e-9)
    imbalance = sum(stage["seconds"] for stage in timeline["imbalances"])
    assert imbalance == pytest.approx(timeline["causes"][-1]["seconds"], rel=1e-6, abs=1e-9)


@every_file
def test_spans_of_the_tracks_have_the_seconds_of_the_table(name: str) -> None:
    timeline = simulated_document(name)["timeline"]
    for row in timeline["rows"]:
        tracks = {track["name"]: track for track in row["tracks"]}
        for track in row["tracks"]:
            places = numbers(track["works"])
            assert len(places) == len(spans(track))
            known = len(timeline["works"])
            if track["name"] == "idle":
                known = len(timeline["causes"]) + len(timeline["imbalances"])
            assert all(0 <= place < known for place in places)
            for _, end in spans(track):
                assert end * timeline["tick_s"] <= timeline["end_s"] * (1 + 1e-8)
        for name_of_track, seconds in (("compute", row["busy_s"]), ("idle", row["idle_s"])):
            ticks = sum(end - start for start, end in spans(tracks[name_of_track]))
            count = len(spans(tracks[name_of_track]))
            assert ticks * timeline["tick_s"] == pytest.approx(
                seconds, abs=(count + 1) * timeline["tick_s"], rel=1e-7
            )


def test_actions_name_chunk_and_microbatch() -> None:
    timeline = simulated_document("pipeline")["timeline"]
    for number, row in enumerate(timeline["rows"]):
        compute = row["tracks"][0]
        actions = [
            (timeline["works"][work]["kind"], timeline["works"][work]["chunk"], microbatch)
            for work, microbatch in zip(
                numbers(compute["works"]), numbers(compute["microbatches"]), strict=True
            )
        ]
        microbatches = 128 // 2
        forwards = {(chunk, m) for kind, chunk, m in actions if kind == "forward"}
        chunks = {number, number + 4}
        assert forwards == {(chunk, m) for chunk in chunks for m in range(microbatches)}
        assert actions[-1] == ("update", -1, -1)


@every_file
def test_static_pictures_are_small(name: str) -> None:
    document = simulated_document(name)
    for view in ("timeline", "communication"):
        chart = VIEWS[view](document).chart
        if chart is not None:
            parent = Element("section")
            chart(parent, document)
            assert len(tostring(parent)) < 60_000


def test_colours_of_the_picture_are_those_of_the_causes() -> None:
    document = simulated_document("pipeline")
    html = report_html(document)
    section = html[html.index('<section id="timeline"') : html.index('<section id="communication"')]
    drawn = set(re.findall(r'<path class="([^"]+)"', section))
    assert {"work-forward", "work-backward"} <= drawn
    causes = document["timeline"]["causes"]
    longest = max(range(len(causes)), key=lambda number: causes[number]["seconds"])
    assert f"series-{longest}" in drawn
    table = section[section.index('data-rows="/timeline/causes"') :]
    swatches = re.findall(r'class="swatch (series-\d)"', table)
    assert swatches[: len(causes)] == [f"series-{number}" for number in range(len(causes))]


def test_idle_time_of_one_device_has_no_cause() -> None:
    document = simulated_document("one device that does not fit")
    assert document["timeline"]["largest"] is None
    assert document["communication"]["slowest"] is None
    assert VIEWS["communication"](document).chart is None


@every_file
def test_groups_contain_their_device_and_have_their_size(name: str) -> None:
    communication = simulated_document(name)["communication"]
    for group in communication["groups"]:
        devices = pattern_devices(group["group"])
        assert len(set(devices)) == group["size"] > 1
        assert group["device"] in devices
        assert (
            communication["classes"][group["device_class"]]["devices"]["first"] == group["device"]
        )
        assert communication["kinds"][group["kind"]] == group["name"]
        assert group["sent_bytes"] > 0
    nodes = communication["nodes"]
    assert sum(run["devices"] * run["count"] for run in nodes) == communication["devices"]
    if communication["slowest"] is not None:
        level = communication["slowest"]["level"]
        assert level == max(group["level"] for group in communication["groups"])
        same_tier = [g["sent_bytes"] for g in communication["groups"] if g["level"] == level]
        assert communication["slowest"]["sent_bytes"] == max(same_tier)


def test_a_change_is_simulated_and_its_worth_is_the_difference_of_the_steps() -> None:
    document = simulated_document("pipeline")
    for view in ("timeline", "communication"):
        change = document[view]["change"]
        ratio = change["step_s"] / change["sequences"] / (document["answer"]["step_s"] / 128)
        assert change["gain"] == pytest.approx(1 - ratio, abs=1e-8)
        assert change["difference"] == pytest.approx(ratio - 1, abs=1e-8)
        assert change["command"].startswith(("shardwright why ", "shardwright simulate "))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gain": 0.1, "simulated": 3}, "saves"),
        ({"gain": -0.1, "simulated": 1}, "is not faster"),
        ({"gain": 0.0, "simulated": 3}, "none of"),
    ],
)
def test_only_faster_changes_are_recommended(change: Any, words: str) -> None:
    assert words in change_sentence("/timeline/change", change)
    assert change_sentence("/timeline/change", None) == ""


def test_classes_with_the_least_idle_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    step = simulate_stored(stored("pipeline"))
    pieces = idle_pieces(step.simulated.program, step.simulated.timeline)
    all_rows = pipeline_timeline(step, pieces).rows
    monkeypatch.setattr(pipeline_timeline_content, "MOST_ROWS", 2)
    some = pipeline_timeline(step, pieces)
    assert some.classes == len(all_rows) == 4
    longest = sorted(all_rows, key=lambda row: -row.idle_s)[:2]
    assert {row.device for row in some.rows} == {row.device for row in longest}
    document = json.loads(json.dumps(simulated_document("pipeline")))
    document["timeline"]["rows"] = document["timeline"]["rows"][:2]
    page = require_numbers_of_document(report_html(document), document)
    assert any("of the classes that wait longest" in words for words in page.words)
    monkeypatch.setattr(pipeline_timeline_content, "MOST_SPANS", 1)
    assert len(pipeline_timeline(step, pieces).rows) == 1
