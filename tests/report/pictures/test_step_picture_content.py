"""Pictures of simulated steps: rectangles are where the trace says, bars as long as the
prediction's bytes, whatever the form."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from shardwright.api.compute_plan_picture import draw
from shardwright.api.request_to_problem import problem_of
from shardwright.cli.main import run
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.errors import StrategyError, UsageError
from shardwright.program.step_trace import ACTIONS, Track
from shardwright.report.pictures.plan_picture_content import PlanPicture
from shardwright.report.pictures.plan_picture_to_json import picture_document
from shardwright.report.pictures.plan_svg import plan_svg
from shardwright.report.pictures.plan_text import PlanText
from shardwright.report.pictures.step_picture_content import COLOURS, StepPicture
from shardwright.report.pictures.step_svg import MEMORY, SENT, TIMELINE
from shardwright.report.pictures.step_text import IDLE, row_line
from shardwright.search.search_request import Request
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import SimulatedPlan, plan_of_grid, simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.strategy.text.grid_notation import parse_grid
from tests.golden.files import assert_golden

SVG = "{http://www.w3.org/2000/svg}"
MODEL, CLUSTER, LENGTH, BATCH = "llama-2-7b", "h100-sxm:32", 4096, 16
REQUEST = Request(model=MODEL, cluster=CLUSTER, seq_len=LENGTH, global_batch=BATCH)
GRIDS = (
    "tp4 sp pp4 mbs1 zero1 recompute=full",
    "tp4 sp pp4 mbs1 zero0 schedule=zb-h1",
    "tp2 sp pp4 vpp2 mbs1 zero1",
)


@pytest.fixture(scope="module", params=GRIDS)
def text(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def picture(text: str) -> PlanPicture:
    return draw(text, model=MODEL, cluster=CLUSTER, seq_len=LENGTH, global_batch=BATCH)


@pytest.fixture(scope="module")
def step(picture: PlanPicture) -> StepPicture:
    assert picture.step is not None
    return picture.step


@pytest.fixture(scope="module")
def result(text: str) -> SimulatedPlan:
    problem = problem_of(REQUEST)
    return simulate_plan(problem, plan_of_grid(problem, parse_grid(text, devices=32)))


@pytest.fixture(scope="module")
def rects(picture: PlanPicture) -> dict[str, list[ET.Element]]:
    found: dict[str, list[ET.Element]] = {}
    for rect in ET.fromstring(plan_svg(picture)).iter(f"{SVG}rect"):
        found.setdefault(rect.get("class", ""), []).append(rect)
    return found


def number(rect: ET.Element, name: str) -> float:
    return float(rect.get(name, "nan"))


def title(rect: ET.Element) -> str:
    return rect.findtext(f"{SVG}title", "")


def test_actions_begin_and_end_where_the_trace_does(
    rects: dict[str, list[ET.Element]], result: SimulatedPlan
) -> None:
    trace = simulated_trace(result, plan="plan")
    drawn = {
        row: number(rect, "x")
        for rect in rects["step"]
        for row in re.findall(r"device (\d+)", title(rect))
    }
    assert sorted(map(int, drawn)) == [one.device for one in trace.devices]
    assert all(number(rect, "width") == TIMELINE for rect in rects["step"])
    for kind, on_compute in (("action", True), ("beside", False)):
        spans = [s for s in trace.spans if (s.track is Track.COMPUTE) is on_compute]
        assert len(rects[kind]) == len(spans)
        for rect, span in zip(rects[kind], sorted(spans, key=lambda s: s.device), strict=True):
            begin = number(rect, "x") - drawn[str(span.device)]
            assert begin == pytest.approx(span.start_s / trace.end_s * TIMELINE, abs=2e-3)
            assert begin + number(rect, "width") == pytest.approx(
                span.end_s / trace.end_s * TIMELINE, abs=3e-3
            )
            assert rect.get("fill") == COLOURS[span.kind]
            assert title(rect).startswith(f"device {span.device}: {span.kind}")


def test_bubbles_are_what_no_action_covers(step: StepPicture, result: SimulatedPlan) -> None:
    trace = simulated_trace(result, plan="plan")
    for row in step.rows:
        spans = sorted(
            (s for s in trace.spans if s.device == row.device and s.track is Track.COMPUTE),
            key=lambda s: s.start_s,
        )
        gaps = (
            sum(max(after.start_s - before.end_s, 0.0) for before, after in pairwise(spans))
            + spans[0].start_s
        )
        assert row.idle_s == pytest.approx(gaps)
        assert {s.kind for s in row.compute} <= {*ACTIONS, "STEP"}


def test_a_letter_is_what_takes_most_of_its_column(step: StepPicture) -> None:
    """Sampled at the middles of 400 parts of each column."""
    columns, samples = 50, 400
    for row in step.rows:
        line = row_line(step, row, columns=columns)
        assert len(line) == columns
        for column, letter in enumerate(line):
            times = [(column + (k + 0.5) / samples) * step.end_s / columns for k in range(samples)]
            seen = Counter(
                next((s.kind for s in row.compute if s.start_s <= t < s.end_s), IDLE).replace(
                    "STEP", "S"
                )
                for t in times
            )
            assert seen[letter] >= max(seen.values()) - 2


def test_memory_bars_are_the_predictions_bytes(
    rects: dict[str, list[ET.Element]], text: str
) -> None:
    problem = problem_of(REQUEST)
    prediction = predict_plan(problem, plan_of_grid(problem, parse_grid(text, devices=32)))
    items = [(name, size) for stage in prediction.stages for name, size in stage.items]
    assert [re.findall(r": (.*) (\d+) bytes", title(rect))[0] for rect in rects["memory"]] == [
        (n, str(size)) for n, size in items
    ]
    for rect, (_, size) in zip(rects["memory"], items, strict=True):
        assert number(rect, "width") == pytest.approx(
            size / prediction.capacity_bytes * MEMORY, abs=1e-3
        )
    assert [title(rect) for rect in rects["capacity"]] == [
        f"{prediction.capacity_bytes} bytes"
    ] * len(prediction.stages)
    assert all(number(rect, "width") == MEMORY for rect in rects["capacity"])


def test_what_is_sent_is_the_simulations_traffic(
    rects: dict[str, list[ET.Element]], step: StepPicture, result: SimulatedPlan
) -> None:
    traffic = plan_traffic(problem_of(REQUEST), result)
    assert tuple(row.traffic for row in step.rows) == traffic
    sizes = [
        (one.part, tier, size)
        for of_class in traffic
        for one in of_class
        for tier, size in zip(step.tiers, one.sent, strict=True)
    ]
    most = max(size for *_, size in sizes)
    assert len(rects["sent"]) == len(sizes)
    for rect, (part, tier, size) in zip(rects["sent"], sizes, strict=True):
        assert title(rect).endswith(f": {part} {size:.0f} bytes over {tier}")
        assert number(rect, "width") == pytest.approx(size / most * SENT, abs=1e-3)


def test_every_device_is_in_its_node(step: StepPicture, result: SimulatedPlan) -> None:
    rows = [row for nodes in step.nodes for _ in range(nodes.count) for row in nodes.rows]
    assert len(rows) == 32
    for number, one in enumerate(result.program.classes):
        assert [device for device, row in enumerate(rows) if row == number] == list(one.devices)
    assert [nodes.first for nodes in step.nodes] == [
        sum(n.count for n in step.nodes[:k]) for k in range(len(step.nodes))
    ]


def test_forms(picture: PlanPicture, step: StepPicture) -> None:
    shown = plain(PlanText(picture=picture), width=100)
    assert max(map(len, shown.splitlines())) <= 100
    for row in step.rows:
        assert row.runs in shown
    root = ET.fromstring(plan_svg(picture))
    for rect in (rect for rect in root.iter(f"{SVG}rect") if rect.get("x")):
        assert number(rect, "x") + number(rect, "width") <= number(root, "width")
        assert number(rect, "y") + number(rect, "height") <= number(root, "height")
    document = picture_document(picture)["step"]
    assert [len(row["spans"]) for row in document["rows"]] == [
        len(row.compute) + len(row.beside) for row in step.rows
    ]
    assert [sum(row["memory_bytes"].values()) for row in document["rows"]] == [
        row.memory.reserved for row in step.rows
    ]
    if "zb-h1" in picture.name:
        assert_golden("picture-step.svg", plan_svg(picture))
        assert (
            Path(__file__).parents[3] / "docs" / "pictures" / "step.svg"
        ).read_text() == plan_svg(picture)
        assert_golden("picture-step.txt", plain(PlanText(picture=picture), width=120))


OWN = """plan own devices 2
lane main samples 4 in 4
  stages embed+16, 16+head on 0, 1
    all = .
order table(main)
  0: 0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
  1: 1F0 1F1 1B0 1B1 1F2 1B2 1F3 1B3
"""


def test_an_order_of_its_own_is_drawn_as_it_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.plan").write_text(OWN)
    drawn = draw(str(tmp_path / "own.plan"), model=MODEL, cluster="h100-sxm:2", seq_len=512)
    assert [order.title for order in drawn.orders] == [
        "an order of its own (main): 16 entries on 2 ranks"
    ]
    assert drawn.step is not None
    for row, line in zip(drawn.step.rows, OWN.splitlines()[-2:], strict=True):
        ran = [
            f"{s.chunk}{s.kind}{s.microbatch}"
            for s in sorted(row.compute, key=lambda s: s.start_s)
            if s.kind in ACTIONS
        ]
        assert list(dict.fromkeys(ran)) == line.split()[1:]
    assert run(["draw", str(tmp_path / "own.plan"), MODEL]) == 0
    assert "table(" not in capsys.readouterr().out


def test_a_plan_file_is_drawn_with_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.json"
    words = [
        MODEL,
        "h100-sxm:8",
        "--seq-len",
        "512",
        "--global-batch",
        "8",
        "--strategy",
        "tp4 sp pp2 zero1 recompute=full",
    ]
    assert run(["simulate", *words, "-o", str(path), "--quiet"]) == 0
    step_s = float(capsys.readouterr().out.split()[0])
    assert run(["draw", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["step_s"] == pytest.approx(step_s)


def test_what_is_not_simulated_has_no_step() -> None:
    assert draw("tp4 pp4", model=MODEL, devices=32).step is None
    with pytest.raises(UsageError, match="--cluster and --seq-len go together"):
        draw("tp4 pp4", model=MODEL, cluster=CLUSTER)
    with pytest.raises(StrategyError, match="does not divide the 32 devices"):
        draw("tp3", model=MODEL, cluster=CLUSTER, seq_len=LENGTH)
