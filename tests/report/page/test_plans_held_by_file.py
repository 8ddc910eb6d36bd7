"""The picture of the plans that a file holds: time and memory are those of their simulations."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.report.other_plans import plans_held_by_file_content
from shardwright.api.report.other_plans.found_plans_of_plan_file import NO_GRID
from shardwright.api.report.other_plans.plans_held_by_file_content import (
    FITS,
    NOT_REPRODUCED,
    NOT_SIMULATED,
    plans_held_by_file,
)
from shardwright.api.report.other_plans.scatter_groups_of_plans_that_do_not_fit import (
    BEYOND_DEVICE,
    BEYOND_HOST,
)
from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.api.request_to_problem import problem_of
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.api.searches.robust_search_over_cluster_scenarios import plan_robust
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, file_text
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.report_page import report_html, report_views
from shardwright.report.page.view_data_types.plans_held_by_file import PlansHeldByFile
from shardwright.report.page.view_data_types.scatter_chart_data import corners_of_front
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.prediction import HostMemory
from shardwright.strategy.text.parse_plan import parse_plan
from tests.api.report.stored_plans import request_of, stored
from tests.files.saved import MIXED, text_of_kind
from tests.report.page.page_numbers import require_numbers_of_document

SHARES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@cache
def _mixed() -> StoredPlan:
    """The plan of a small cluster of two kinds of devices that differ in memory."""
    saved = stored("mixed")
    assert isinstance(saved, StoredPlan)
    return saved


def _held(saved: StoredPlan) -> PlansHeldByFile:
    """The plans of a file that holds several."""
    held = plans_held_by_file(saved)
    assert held is not None
    return held


def _with_pool(saved: StoredPlan, **changes: Any) -> StoredPlan:
    """A file with another best grid on its second kind of device."""
    mixed = saved.certificate.mixed
    assert mixed is not None
    alone = (mixed.alone[0], replace(mixed.alone[1], **changes))
    certificate = replace(saved.certificate, mixed=replace(mixed, alone=alone))
    return replace(saved, certificate=certificate)


def _document(saved: StoredPlan, folder: Path) -> Any:
    """JSON document of the report of a file."""
    file = folder / "plan.json"
    file.write_text(file_text(saved, file))
    return json.loads(to_text(report_document(make_report(file))))


def test_times_and_memory_are_those_of_simulated_plans() -> None:
    """Each plan's own text, simulated alone, has its step, fullest device and share."""
    saved = _mixed()
    problem = problem_of(saved.request)
    held = _held(saved)
    assert held.unequal_devices
    kinds = {row.device for row in held.plans}
    assert kinds == {"h100-sxm", "a100-sxm-80gb"}
    for row in held.plans:
        assert row.notation is not None
        prediction = predict_plan(problem, parse_plan(row.notation))
        fullest = max(prediction.stages, key=lambda one: one.reserved / one.capacity)
        assert row.step_s == pytest.approx(prediction.step_time_s, rel=1e-9)
        assert row.reserved_bytes == prediction.reserved_bytes
        assert row.capacity_bytes == prediction.capacity_bytes
        assert row.memory_share == prediction.reserved_bytes / prediction.capacity_bytes
        assert row.device == fullest.kind
        assert row.slower == pytest.approx(
            prediction.step_time_s / saved.prediction.step_time_s - 1.0, abs=1e-9
        )


def test_each_plan_is_a_mark_and_a_row() -> None:
    held = _held(_mixed())
    points = held.chart.points
    assert [(row.step_s, row.memory_share) for row in held.plans] == list(
        zip(points.x, points.y, strict=True)
    )
    assert list(points.label) == [row.strategy for row in held.plans]
    groups = [held.chart.groups[number] for number in points.group]
    assert [group.series for group in groups] == [row.series for row in held.plans]
    assert sum(group.name == held.best.kind for group in groups) == 1
    assert held.others == len(held.plans) - 1


def test_front_is_of_fitting_plans_that_none_beats() -> None:
    held = _held(_mixed())
    for row in held.plans:
        assert row.step_s is not None
        assert row.memory_share is not None
        beaten = any(
            one is not row
            and (one.step_s or 0.0) <= row.step_s
            and (one.memory_share or 0.0) <= row.memory_share
            for one in held.plans
        )
        assert row.on_front == (not beaten)
    corners = held.chart.line
    front = {(row.step_s, row.memory_share) for row in held.plans if row.on_front}
    assert front <= set(corners)


def test_plans_beyond_the_limit_are_grey_with_the_rule(tmp_path: Path) -> None:
    """Without room for all of them, those above the line do not fit, and no front has them."""
    saved = _mixed()
    shares = sorted(row.memory_share or 0.0 for row in _held(saved).plans)
    limit = (shares[2] + shares[3]) / 2
    tight = replace(saved, request=replace(saved.request, headroom=1.0 - limit))
    held = _held(tight)
    assert held.chart.limit == pytest.approx(limit)
    for row in held.plans:
        assert (row.verdict == FITS) == ((row.memory_share or 0.0) <= limit)
        assert row.verdict in (FITS, BEYOND_DEVICE.name)
        assert (row.series == BEYOND_DEVICE.series) == (row.verdict != FITS)
        assert row.verdict == FITS or not row.on_front
    assert held.unfit == len(shares) - 3
    document = _document(saved, tmp_path)
    again = _document(tight, tmp_path)
    assert "do not fit in memory" not in _reading(document)
    assert f"of which {held.unfit} do not fit in memory" in _reading(again)
    require_numbers_of_document(report_html(again), again)


def _reading(document: Any) -> str:
    """Text of the reading of the view of other plans."""
    view = next(view for view in report_views(document) if view.name == "members")
    return sentence_text(document, view.reading)


def test_command_of_the_neighbour_finds_a_plan_with_as_much_memory_free() -> None:
    saved = _mixed()
    held = _held(saved)
    neighbour = held.neighbour
    assert neighbour is not None
    assert neighbour.step_s is not None
    assert neighbour.memory_share is not None
    assert neighbour.memory_share < (held.best.memory_share or 0.0)
    words = shlex.split(held.command)
    headroom = float(words[words.index("--headroom") + 1].removesuffix("%")) / 100
    assert 0.0 <= 1.0 - headroom - neighbour.memory_share < 0.002
    found = plan_mixed(replace(saved.request, headroom=headroom, top=0))
    assert found.simulation is not None
    prediction = found.simulation.prediction
    assert prediction.reserved_bytes <= prediction.capacity_bytes * (1.0 - headroom)
    assert found.certificate.lower_bound_s <= neighbour.step_s
    assert prediction.step_time_s * (1.0 - found.certificate.gap) <= neighbour.step_s


def test_the_best_plan_is_no_other_plan() -> None:
    """The best plan of this file is the best grid of a kind alone; it is named and listed once."""
    saved = stored_general(plan_mixed(MIXED))
    mixed = saved.certificate.mixed
    assert mixed is not None
    held = _held(saved)
    alone = min(mixed.alone, key=lambda pool: pool.step_time_s or 1e9)
    assert held.best.strategy == alone.strategy
    kinds = [row.kind for row in held.plans]
    assert not any(alone.name in kind for kind in kinds)
    assert len(held.plans) == len(mixed.alone)


@pytest.mark.parametrize("text", ["nonsense", "tp64", "dp1 mbs3", "pp5 dp1"])
def test_a_grid_that_cannot_be_simulated_keeps_its_step(text: str, tmp_path: Path) -> None:
    saved = _with_pool(_mixed(), strategy=text)
    row = next(row for row in _held(saved).plans if row.strategy == text)
    assert row.verdict == NOT_REPRODUCED
    assert (row.memory_share, row.notation, row.on_front) == (None, None, False)
    assert row.step_s is not None
    document = _document(saved, tmp_path)
    require_numbers_of_document(report_html(document), document)


def test_another_step_than_the_stored_one_is_not_plotted() -> None:
    saved = _with_pool(_mixed(), step_time_s=1.0)
    held = _held(saved)
    row = held.plans[-1]
    assert (row.step_s, row.verdict, row.memory_share) == (1.0, NOT_REPRODUCED, None)
    assert len(held.chart.points.x) == len(held.plans) - 1


def test_a_kind_on_which_no_grid_fits_is_said_and_is_no_plan(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"strategy": "", "step_time_s": None, "lower_bound_s": None}
    saved = _with_pool(_mixed(), **nothing)
    held = _held(saved)
    assert held.plans[-1].verdict == NO_GRID
    assert held.others == len(held.plans) - 2
    document = _document(saved, tmp_path)
    require_numbers_of_document(report_html(document), document)


def test_plans_beyond_the_limit_of_tasks_are_not_simulated(monkeypatch: Any) -> None:
    everything = _held(_mixed())
    monkeypatch.setattr(plans_held_by_file_content, "MOST_TASKS", 1)
    held = _held(_mixed())
    assert len(held.plans) == len(everything.plans)
    assert len(held.chart.points.x) == 2
    assert all(row.verdict == NOT_SIMULATED for row in held.plans[2:])
    assert held.plans[:2] == everything.plans[:2]


def test_host_memory_that_lacks_is_a_rule_of_its_own() -> None:
    saved = _mixed()
    lacking = replace(
        saved.prediction,
        host_memory=(
            HostMemory(node=0, nodes=1, devices=1, kind="", items=(), need=2, capacity=1),
        ),
    )
    held = _held(replace(saved, prediction=lacking))
    assert held.best.verdict == BEYOND_HOST.name
    assert not held.best.on_front


def test_front_of_time_and_cost_is_plotted(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text_of_kind("of a front"))
    document = json.loads(to_text(report_document(make_report(file))))
    certificate = json.loads(file.read_text())["certificate"]["mixed"]
    steps = {one["step_time_s"] for one in certificate["valued"]["front"]}
    assert steps <= {row["step_s"] for row in document["members"]["held"]["plans"]}
    require_numbers_of_document(report_html(document), document)


def test_plans_for_several_states_are_plotted(tmp_path: Path) -> None:
    states = tmp_path / "states.yaml"
    states.write_text(
        "scenarios:\n- {name: usual, weight: 0.5}\n- {name: busy, weight: 0.5, network: 0.1}\n"
    )
    request = replace(
        request_of("llama-3.2-1b", "h100-sxm:4"),
        scenarios=str(states),
        pins=(("mbs", ("1",)), ("recompute", ("none",))),
    )
    saved = stored_general(plan_robust(request))
    held = _held(saved)
    assert saved.certificate.scenarios is not None
    tried = saved.certificate.scenarios.next_best
    assert {row.strategy for row in held.plans} == {
        *(one.strategy for one in tried),
        held.best.strategy,
    }
    assert held.has_scenarios
    document = _document(saved, tmp_path)
    page = report_html(document)
    assert "without its scenarios" in page
    require_numbers_of_document(page, document)


@given(SHARES)
def test_no_point_is_below_and_left_of_the_front(points: list[tuple[int, int]]) -> None:
    corners = corners_of_front(points)
    for x, y in points:
        levels = [level for across, level in corners if across <= x]
        assert levels
        assert min(levels) <= y
    for (left, upper), (right, lower) in itertools.pairwise(corners):
        assert (left == right and lower < upper) or (lower == upper and left < right)
