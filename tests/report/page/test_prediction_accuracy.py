"""The view of accuracy: nearest published runs, their errors, the interval and its doubts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.report.nearest_published_runs import (
    RunTraits,
    distance,
    framework_of,
    nearest_runs,
)
from shardwright.api.report.prediction_accuracy_content import (
    MEASUREMENTS,
    NEAREST,
    SHARED,
    prediction_accuracy,
)
from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.api.searches.grid_search import plan
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document, stored_answer
from shardwright.report.page.report_page import report_html
from shardwright.simulator.prediction import Doubt
from shardwright.simulator.step_time_interval import COEFFICIENTS, interval
from shardwright.validation.training.shipped_predictions_of_published_runs import (
    PredictedRun,
    predictions_of_published_runs,
)
from shardwright.validation.training.sweep_and_scaling_checks import timed
from shardwright.validation.validate_tables import validate
from tests.files.saved import NARROW
from tests.report.page.page_numbers import require_numbers_of_document

PUBLISHED = Path("benchmarks/published/training.csv")
TRAITS = RunTraits(
    parameters=8 * 10**9,
    accelerators=("h100-sxm",),
    devices=64,
    runtime="megatron-core-0.12",
    degrees=(2, 1, 4, 1),
    sequence_tokens=8192,
)
RUN = PredictedRun(
    model="one",
    parameters=TRAITS.parameters,
    accelerator="h100-sxm",
    devices=64,
    runtime=TRAITS.runtime,
    tp=2,
    cp=1,
    pp=4,
    ep=1,
    sequence_tokens=8192,
    measured_s=2.0,
    predicted_s=2.1,
    low_s=1.9,
    high_s=2.3,
    source="here",
    row="row",
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """JSON document of the report of a small plan."""
    file = tmp_path_factory.mktemp("report") / "best.json"
    file.write_text(to_text(plan_document(plan(NARROW))))
    return json.loads(to_text(report_document(make_report(file))))


def test_numbers_are_values_of_the_json(document: Any) -> None:
    page = require_numbers_of_document(report_html(document), document)
    cells = {(rows, row, name): text for rows, row, name, _, text in page.cells}
    for row, run in enumerate(document["accuracy"]["nearest"]):
        assert cells["/accuracy/nearest", row, "reference"] == run["reference"]
    for row, source in enumerate(document["accuracy"]["sources"]):
        assert cells["/accuracy/sources", row, "reference"] == source["reference"]
    assert len(document["accuracy"]["sources"]) > 5


def test_nearest_runs_are_the_least_distant_ones(document: Any) -> None:
    accuracy = document["accuracy"]
    runs = predictions_of_published_runs()
    assert len(accuracy["nearest"]) == NEAREST
    assert len(accuracy["chart"]["points"]["x"]) == len(runs)
    errors = [abs(run["predicted_s"] / run["measured_s"] - 1) for run in accuracy["nearest"]]
    near, *_, every = accuracy["errors"]
    assert near["median"] == pytest.approx(median(errors))
    assert near["inside"] == pytest.approx(
        sum(run["inside"] for run in accuracy["nearest"]) / NEAREST
    )
    assert every["runs"] == len(runs)
    assert every["median"] == pytest.approx(median(abs(run.error) for run in runs), rel=1e-6)
    assert {run["accelerator"] for run in accuracy["nearest"]} == {"h100-sxm"}


@given(st.permutations(range(6)))
def test_order_of_the_nearest_does_not_depend_on_the_order_of_the_runs(order: list[int]) -> None:
    runs = [replace(RUN, parameters=RUN.parameters * 2**k, model=f"model {k}") for k in range(6)]
    shuffled = [runs[place] for place in order]
    assert nearest_runs(shuffled, TRAITS, count=3) == tuple(runs[:3])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"parameters": TRAITS.parameters * 4}, 2.0),
        ({"parameters": TRAITS.parameters // 4}, 2.0),
        ({"devices": 256}, 0.5),
        ({"sequence_tokens": 4096}, 0.25),
        ({"tp": 8, "ep": 2}, 0.75),
        ({"accelerator": "a100-sxm-80gb"}, 1.0),
        ({"runtime": "megatron-core-0.16"}, 0.5),
        ({"runtime": "torchtitan-0.2"}, 2.0),
    ],
)
def test_distance(changes: dict[str, Any], expected: float) -> None:
    assert distance(replace(RUN, **changes), TRAITS) == pytest.approx(expected)


def test_a_general_plan_has_no_degrees_to_compare() -> None:
    assert distance(replace(RUN, tp=8, pp=16), replace(TRAITS, degrees=())) == 0.0


def test_name_of_a_framework() -> None:
    names = {"nemo-24.07": "nemo", "fsdp1-llm-foundry": "fsdp1-llm-foundry", "maxtext": "maxtext"}
    assert {name: framework_of(name) for name in names} == names


def test_doubts_add_up_to_the_interval(document: Any) -> None:
    accuracy = document["accuracy"]
    half = math.prod(1 + part["half_width"] for part in accuracy["parts"])
    assert half == pytest.approx(1 + accuracy["half_width"], rel=1e-6)
    widths = [part["half_width"] for part in accuracy["parts"]]
    assert widths == sorted(widths, reverse=True)


def test_measurement_is_about_the_widest_doubt_of_this_prediction() -> None:
    stored = stored_answer(plan(NARROW))
    shared, exposed = Doubt(name=SHARED, share=1.0), Doubt(name="exposed communication", share=0.1)
    unseen = Doubt(name="device without runs", share=1.0)

    def narrowing(*doubts: Doubt) -> Any:
        prediction = replace(stored.prediction, doubts=doubts)
        return prediction_accuracy(replace(stored, prediction=prediction)).narrowing

    assert narrowing(shared).interval_s is None
    assert narrowing().interval_s is None
    found = narrowing(shared, unseen, exposed)
    assert found.part == "exposed communication"
    assert found.interval_s == interval(stored.prediction.step_time_s, (shared, unseen))
    assert "calibrate" in found.command
    assert set(MEASUREMENTS) == set(COEFFICIENTS) - {SHARED}


def test_shipped_runs_are_the_published_rows(tmp_path: Path) -> None:
    """A sample of the table is predicted again.

    The shipped predictions are of constants that were fitted without a laboratory's rows, so they
    differ a little.
    """
    shipped = {run.reference: run for run in predictions_of_published_runs()}
    assert len(shipped) > 850
    assert all(run.low_s <= run.predicted_s <= run.high_s for run in shipped.values())
    header, *rows = PUBLISHED.read_text().splitlines()
    sample = tmp_path / "sample.csv"
    sample.write_text("\n".join([header, *rows[::60]]) + "\n")
    judged = list(timed(validate(sample, facts=PUBLISHED.parent / "facts").rows))
    assert len(judged) > 5
    for row, predicted_s, measured_s in judged:
        measurement = row.run.measurement
        run = shipped[f"{measurement.source}: {measurement.table_or_row}"]
        assert run.measured_s == pytest.approx(measured_s, rel=1e-4)
        assert run.predicted_s == pytest.approx(predicted_s, rel=0.1)
        assert run.parameters == row.run.model.num_parameters
