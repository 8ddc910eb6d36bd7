"""The answer of a search is the same, byte for byte, whatever engine it runs on and with however
many workers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import document_of
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.parallel import process_workers
from shardwright.search.parallel.engine_by_name import PROCESSES, SERIAL, engine_of
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP, Limit, Stops, limit_of
from tests.tiers import in_both, in_proof

PINS = (("tp", ("2", "4")),) if in_proof() else (("tp", ("4",)), ("mbs", ("1",)))
JOINT = Request(
    model="llama-3.1-8b",
    cluster="h100-sxm:16",
    seq_len=4096,
    global_batch=64,
    space="joint",
    pins=PINS,
)
MIXED = Request(
    model="examples/tiny.json",
    cluster="a100-sxm-40gb:2+v100-sxm-16gb:2",
    seq_len=64,
    global_batch=8,
)
LARGER = Request(
    model="llama-2-7b", cluster="a100-sxm-40gb:4+v100-sxm-16gb:4", seq_len=1024, global_batch=16
)
"""Whose subspaces are tested, and plans simulated, more than one at once; PROVEN: with pipelines
of more forms and lanes."""
PROVEN = Request(
    model="llama-2-7b", cluster="a100-sxm-40gb:8+v100-sxm-16gb:16", seq_len=1024, global_batch=64
)
REQUESTS = [
    pytest.param(LARGER, id="larger"),
    pytest.param(PROVEN, id="proven", marks=pytest.mark.proof),
]


def joint(name: str, workers: int, *, stops: Stops | None = None) -> str:
    """The file of a joint answer."""
    with engine_of(name, workers=workers, least_s=0.0) as engine:
        return to_text(document_of(stored_general(plan_joint(JOINT, stops=stops, engine=engine))))


def mixed(
    name: str,
    workers: int,
    *,
    request: Request = MIXED,
    stops: Stops | None = None,
    effort: Effort = USUAL,
) -> str:
    """The file of a mixed answer."""
    with engine_of(name, workers=workers, least_s=0.0) as engine:
        answer = plan_mixed(request, stops=stops, effort=effort, engine=engine)
        return to_text(document_of(stored_general(answer)))


def certificate(text: str) -> Any:
    return json.loads(text)["certificate"]


@pytest.fixture(scope="module")
def alone() -> str:
    return joint(SERIAL, 1)


@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (2, ""),
        pytest.param(3, "", marks=pytest.mark.proof),
        pytest.param(2, "spawn", marks=pytest.mark.proof),
    ],
)
def test_joint(workers: int, method: str, alone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        process_workers, "start_method", lambda own=process_workers.start_method: method or own()
    )
    assert joint(PROCESSES, workers) == alone
    counts = certificate(alone)
    assert counts["bounded_b1"] > 0
    assert counts["simulated"] > 0


@pytest.mark.proof
def test_a_joint_search_that_is_stopped_is_the_same_too(alone: str) -> None:
    """Looks at the clock stand between rounds, so their numbers mean the same."""
    stopped = joint(SERIAL, 1, stops=Stops(grids=(0,), search=5))
    assert certificate(stopped)["stopped_at"] == 5
    assert stopped != alone
    assert joint(PROCESSES, 2, stops=Stops(grids=(0,), search=5)) == stopped


def many_workers() -> tuple[int, ...]:
    """More than the cores, too, in a proof."""
    return (1, 2, 3) if in_proof() else (1, 2)


@in_both
def test_mixed() -> None:
    assert [mixed(PROCESSES, workers) for workers in many_workers()] == [whole_of(MIXED)] * len(
        many_workers()
    )
    # Where the search of a pool's grids is cut off, too; by looks, not by seconds.
    few = replace(USUAL, pool_grid_clock_checks=2)
    short = mixed(SERIAL, 1, effort=few)
    assert [one["stopped_at"] for one in certificate(short)["mixed"]["alone"]] == [2, 2]
    assert mixed(PROCESSES, 2, effort=few) == short


@cache
def whole_of(request: Request) -> str:
    """The file of a mixed answer on one process."""
    return mixed(SERIAL, 1, request=request)


@pytest.mark.parametrize("method", ["", pytest.param("spawn", marks=pytest.mark.proof)])
@pytest.mark.parametrize("asked", REQUESTS)
def test_frames_compositions_and_simulations_of_a_mixed_search(
    asked: Request, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        process_workers, "start_method", lambda own=process_workers.start_method: method or own()
    )
    whole = whole_of(asked)
    assert mixed(PROCESSES, 2, request=asked) == whole
    part = certificate(whole)["mixed"]
    assert part["tests"] > len(part["closed"])
    assert part["pipelines"]
    assert certificate(whole)["simulated"] > USUAL.simulations_at_once


@pytest.mark.proof
@pytest.mark.parametrize("asked", REQUESTS)
def test_a_mixed_search_that_is_stopped_is_the_same_too(asked: Request) -> None:
    """In the look for plans, and in the proof."""
    for stops in (
        Stops(grids=(0, 0), composed=3),
        Stops(grids=(0, 0), search=2),
    ):
        stopped = mixed(SERIAL, 1, request=asked, stops=stops)
        found = certificate(stopped)
        assert (found["mixed"]["composed_stopped_at"], found["stopped_at"]) == (
            stops.composed,
            stops.search,
        )
        assert mixed(PROCESSES, 2, request=asked, stops=stops) == stopped


@pytest.mark.usefixtures("ray")
def test_mixed_on_ray() -> None:
    assert mixed("ray", 2) == whole_of(MIXED)


@pytest.mark.proof
@pytest.mark.usefixtures("ray")
def test_joint_on_ray(alone: str) -> None:
    assert joint("ray", 2) == alone


def looks_until(limit: Limit) -> int:
    while not limit.passed():
        assert limit.looks < 100
    return limit.stopped_at


def test_a_limit_of_looks_cuts_in_at_its_look_at_ctrl_c_and_where_it_is_repeated() -> None:
    assert looks_until(limit_of(1e9, most_looks=7)) == 7
    assert looks_until(limit_of(1e9, most_looks=7, stop_at=3)) == 3
    STOP.set()
    try:
        assert looks_until(limit_of(1e9, most_looks=7)) == 1
    finally:
        STOP.clear()
