"""The view of the searched space: its counts are the certificate's, its points are members."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.report.other_plans import searched_members_content
from shardwright.api.report.other_plans.searched_members_content import (
    GROUPS,
    MOST_SIMULATED,
    searched_members,
)
from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.api.searches.grid_search import plan
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.cli.parsing.shared_options import read_choices
from shardwright.files.canonical_json import to_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    file_text,
    stored_answer,
)
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.report_page import report_html, report_views
from shardwright.search.search_request import Request
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.text.grid_notation import parse_grid
from tests.api.report.stored_plans import stored
from tests.files.saved import KINDS, REQUEST, text_of_kind
from tests.report.page.page_numbers import require_numbers_of_document
from tests.search.brute import count

SMALL = Request(
    model="examples/tiny.json",
    cluster="h100-sxm:2",
    seq_len=64,
    global_batch=4,
    runtime="torchtitan-0.2",
    precision="bf16",
    pins=(("mbs", ("1", "2")), ("recompute", ("none", "full")), ("zero", ("0", "3"))),
)
_SIMULATED = len(GROUPS) - 1


@cache
def _answer_of(request: Request) -> StoredPlan:
    """Contents of the file of a request's plan."""
    return stored_answer(plan(request))


def _document(folder: Path, kind: str) -> Any:
    """JSON document of the report of a file of a kind."""
    file = folder / "answer.json"
    file.write_text(text_of_kind(kind))
    return json.loads(to_text(report_document(make_report(file))))


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_any_kind_has_the_numbers_of_its_json(kind: str, tmp_path: Path) -> None:
    document = _document(tmp_path, kind)
    require_numbers_of_document(report_html(document), document)
    members = document["members"]
    certificate = json.loads((tmp_path / "answer.json").read_text()).get("certificate")
    assert (members is None) == (certificate is None)
    if members is not None:
        _assert_counts(members, certificate)
        assert (members["chart"] is None) == bool(members["note"]) == (kind != "grid")


def test_a_file_of_a_mixed_search_lists_its_other_plans(tmp_path: Path) -> None:
    """Those of other compositions and the best grid of each pool, against the best plan."""
    saved = stored("mixed")
    assert isinstance(saved, StoredPlan)
    members = searched_members(saved)
    mixed = saved.certificate.mixed
    assert mixed is not None
    steps = [
        *(runner.step_time_s for runner in mixed.runners),
        *(pool.step_time_s for pool in mixed.alone if pool.step_time_s is not None),
    ]
    assert members.held is not None
    assert [one.step_s for one in members.held.plans] == sorted(
        [saved.prediction.step_time_s, *steps]
    )
    assert len(steps) > len(mixed.alone)
    file = tmp_path / "best.json"
    file.write_text(file_text(saved, file))
    document = json.loads(to_text(report_document(make_report(file))))
    view = next(view for view in report_views(document) if view.name == "members")
    change = sentence_text(document, view.next_change)
    assert members.held.neighbour is not None
    assert members.held.neighbour.strategy in change
    assert members.held.command in change
    assert "no other plan" not in sentence_text(document, view.reading)


def test_a_file_without_other_plans_says_so(tmp_path: Path) -> None:
    document = _document(tmp_path, "joint")
    assert document["members"]["held"] is None
    view = next(view for view in report_views(document) if view.name == "members")
    assert "The file holds no other plan than the best." in sentence_text(document, view.reading)
    assert not view.next_change


def _assert_counts(members: Any, certificate: Any) -> None:
    """The numbers of members by fate add up to those of the certificate."""
    counts = {row["fate"]: row["members"] for row in members["counts"]}
    assert sum(counts.values()) == certificate["enumerated"]
    assert counts["breaks a rule"] == certificate["illegal"]
    assert counts["repeats another strategy"] == certificate["duplicates"]
    assert counts["simulated"] == certificate["simulated"]
    infeasible = [number for fate, number in counts.items() if fate.startswith("does not fit")]
    assert sum(infeasible) == certificate["infeasible"]
    shares = [row["share"] for row in members["counts"] if row["share"] is not None]
    assert sum(shares) == pytest.approx(1.0)


def test_all_members_of_a_small_space_are_plotted_once() -> None:
    """Points are the members that brute force enumerates; simulated ones have their own values."""
    problem = problem_of(SMALL)
    facts = facts_of(problem)
    space = space_of(SMALL, problem, facts)
    answer = _answer_of(SMALL)
    members = searched_members(answer)
    assert members.chart is not None
    points = members.chart.points
    brute = count(problem, replace(space, paired=()), facts)
    grids = [parse_grid(f"{label} {members.shared_words}") for label in points.label]
    found = Counter(canonical(grid, facts=facts) for grid in grids)
    assert max(found.values()) == 1
    assert set(found) == set(brute.grids)
    assert members.plotted == len(brute.grids) == members.strategies
    assert (members.bounded_singly, members.bounded_together) == (members.strategies, 0)
    for row in members.simulated:
        again = simulation(SMALL, strategy=row.strategy).prediction
        assert again.step_time_s == pytest.approx(row.step_s, rel=1e-9)
        assert again.reserved_bytes == row.reserved_bytes
    by_search = [row for row in members.simulated if row.found_by == "search"]
    assert len(by_search) == answer.certificate.simulated
    assert points.group.count(_SIMULATED) == len(members.simulated)


def test_points_are_few_and_the_front_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _answer_of(REQUEST)
    members, fewer = searched_members(answer), searched_members(answer, most=100)
    assert members.chart is not None
    assert fewer.chart is not None
    assert 1900 < members.plotted <= searched_members_content.MOST_POINTS
    assert 90 < fewer.plotted <= 100
    assert fewer.simulated == members.simulated
    assert searched_members(answer) == members
    front = [row for row in members.simulated if row.on_front]
    assert 1 < len(front) <= MOST_SIMULATED + answer.certificate.simulated
    memory = [row.reserved_bytes for row in front]
    assert memory == sorted(memory, reverse=True)
    assert members.simulated[0].step_s == answer.certificate.best_s
    assert members.near is not None
    assert members.near.least is not None
    assert members.near.least.slower <= members.near.share
    near = [row for row in members.simulated if row.slower <= members.near.share]
    assert members.near.least.reserved_bytes == min(row.reserved_bytes for row in near)
    assert members.near.members >= len(near)


def test_command_of_the_neighbour_finds_it() -> None:
    answer = _answer_of(REQUEST)
    neighbour = searched_members(answer).neighbour
    assert neighbour is not None
    words = neighbour.command.split()
    pins = [word for flag, word in itertools.pairwise(words) if flag == "--pin"]
    found = plan(replace(REQUEST, pins=read_choices(pins, flag="--pin"), top=0), sensitive=False)
    assert found.certificate.best_s == pytest.approx(neighbour.step_s, rel=1e-12)
    assert found.prediction.reserved_bytes == neighbour.reserved_bytes
    best = answer.prediction
    assert neighbour.saved_bytes == best.reserved_bytes - neighbour.reserved_bytes
    assert neighbour.slower == pytest.approx(neighbour.step_s / best.step_time_s - 1)


def test_a_certificate_of_another_version_has_counts_alone() -> None:
    answer = _answer_of(SMALL)
    other = replace(answer, certificate=replace(answer.certificate, digest="0" * 64))
    fewer = replace(
        answer,
        certificate=replace(
            answer.certificate,
            simulated=answer.certificate.simulated - 1,
            bounded_b0=answer.certificate.bounded_b0 + 1,
        ),
    )
    for changed in (other, fewer):
        members = searched_members(changed)
        assert members.chart is None
        assert "plan again" in members.note
        document = {"members": json.loads(to_text(to_json_value(members, names={})))}
        assert [view.name for view in report_views(document)] == ["members"]
