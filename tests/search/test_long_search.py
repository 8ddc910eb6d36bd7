"""A search that takes long says where it stands, keeps within its memory, and without a plan does
not go on for ever."""

from __future__ import annotations

import random
from math import inf

import pytest

from shardwright.errors import OutOfTimeError
from shardwright.search import search_time_limit as search_limit
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.grid.verify_certificate import recheck
from shardwright.search.search_time_limit import Limit, limit_of, progress_text
from tests.search.problems import small_case

CAPACITY = 10**15
SEED = 5001


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of all limits, set by hand."""
    at = [1000.0]
    monkeypatch.setattr(search_limit.time, "monotonic", lambda: at[0])
    return at


def test_a_limit_without_a_plan_waits_for_the_first_but_not_for_ever(now: list[float]) -> None:
    limit = limit_of(30.0)
    assert not limit.ends(found=False)
    assert not limit.waited
    now[0] += 31.0
    assert not limit.ends(found=False)
    assert limit.waited
    assert limit.ends(found=True)
    now[0] += 10 * 30.0
    with pytest.raises(OutOfTimeError) as refused:
        limit.ends(found=False)
    assert refused.value.exit_code == 11
    assert refused.value.hint


def test_a_repeated_search_goes_by_no_clock(now: list[float]) -> None:
    limit = Limit(stop_at=1)
    now[0] += 10.0**9
    assert not limit.ends(found=False)
    assert limit.ends(found=True)


def test_an_answer_says_that_its_limit_had_passed_before_it(now: list[float]) -> None:
    case = small_case(SEED)
    assert find(
        case.problem, case.space, case.facts, capacity=CAPACITY, top=1, time_limit_s=-1.0
    ).waited
    assert not find(case.problem, case.space, case.facts, capacity=CAPACITY, top=1).waited


def test_a_search_out_of_patience_says_nothing_of_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = small_case(SEED)
    ticks = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(search_limit.time, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(OutOfTimeError):
        find(
            case.problem,
            case.space,
            case.facts,
            capacity=CAPACITY,
            top=1,
            time_limit_s=1.0,
            memory=0,
        )


def test_members_that_were_not_kept_are_checked_as_those_that_were() -> None:
    """All meshes of the case are crossed, however much memory there is: their illegal members are
    counted one by one."""
    case = small_case(5023)
    answer = find(case.problem, case.space, case.facts, capacity=CAPACITY, top=2, memory=0)
    found = [
        recheck(
            case.problem,
            case.space,
            case.facts,
            answer,
            capacity=CAPACITY,
            generator=random.Random(3),
            repeated=again,
        )
        for again in (
            search(case.problem, case.space, case.facts, capacity=CAPACITY, top=2, memory=0),
            search(
                case.problem,
                case.space,
                case.facts,
                capacity=CAPACITY,
                top=2,
                memory=16 * answer.certificate.enumerated * 1000,
            ),
        )
    ]
    assert found[0].sampled == found[1].sampled > 0
    assert found[0].strategies == found[1].strategies


def test_no_memory_keeps_no_members() -> None:
    case = small_case(SEED)
    parts = search(
        case.problem, case.space, case.facts, capacity=CAPACITY, top=2, memory=0
    ).expanded
    assert parts
    assert all(part.whole is None or not part.num_members for part in parts)
    whole = search(case.problem, case.space, case.facts, capacity=CAPACITY, top=2).expanded
    assert all(part.whole is not None for part in whole)


def test_the_progress_line_has_incumbent_gap_and_time_left(now: list[float]) -> None:
    limit = limit_of(10.0)
    assert progress_text("refine", best_s=inf, lower_s=1.0, limit=limit) == "refine: 10 s left"
    now[0] += 7.0
    assert (
        progress_text("refine", best_s=2.0, lower_s=1.0, limit=limit)
        == "refine: best 2 s, gap 50.0 %, 3 s left"
    )
    proven = progress_text("refine", best_s=2.0, lower_s=2.5, limit=limit)
    assert proven == "refine: best 2 s, gap 0.0 %, 3 s left"
    assert (proven.best_s, proven.lower_s) == (2.0, 2.0)
    now[0] += 7.0
    assert (
        progress_text("refine", best_s=inf, lower_s=1.0, limit=limit)
        == "refine: time is up, on to the first plan"
    )
    assert progress_text("refine", best_s=2.0, lower_s=0.0, limit=Limit()) == "refine: best 2 s"
