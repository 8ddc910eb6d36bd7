"""Pins of mixed plans: what stages may have, and that a pinned search is a search of a part of the
space."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from shardwright.api.request_to_problem import problem_of
from shardwright.api.searches.mixed_search_pins_and_memory_headroom import choices_for
from shardwright.errors import UsageError
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.plans import best_grid_on_each_pool_alone as pool_grids
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    PoolGridSearch,
    pool_grid_space,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues, pinned_values_of
from shardwright.search.mixed.stages.stage_cost_table import stage_table
from shardwright.search.mixed_cluster_certificate import (
    GIVEN_UP,
    ClosedSubspaces,
    Dual,
    Subspace,
    device_worth_seconds,
)
from shardwright.search.optimality_certificate import stops_of
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY, Request
from shardwright.search.search_time_limit import STOP, out_of_time
from tests.search.mixed.test_find_fastest import part_of, tiny
from tests.tiers import cases, chosen

CLUSTER = "a100-sxm-40gb:2+v100-sxm-16gb:2"


@cache
def whole_space() -> GeneralAnswer[MixedPlan | None]:
    return find_mixed(tiny(CLUSTER, batch=8), top=3)


def test_rows_have_what_is_pinned_and_nothing_that_is_excluded() -> None:
    problem = tiny(CLUSTER, batch=8)
    every = stage_table(problem)
    assert set(every.tp.tolist()) == {1, 2}
    assert set(every.mbs.tolist()) == {1, 2, 4, 8}
    table = stage_table(problem, pinned_values_of((("mbs", ("2", "3")),), (("tp", ("2",)),)))
    assert set(table.tp.tolist()) == {1}
    assert set(table.mbs.tolist()) == {2, 3}
    assert [(pool, mesh.size) for pool, mesh in table.meshes] == [(0, 1), (1, 1)]


def test_lanes_have_the_stages_that_are_pinned_and_left() -> None:
    problem = tiny(CLUSTER, batch=8)
    assert set(stage_table(problem).zero.tolist()) == {1, 2, 3}
    assert set(stage_table(problem, pinned_values_of((("zero", ("3",)),), ())).zero.tolist()) == {3}
    assert set(stage_table(problem, pinned_values_of((), (("zero", ("3",)),))).zero.tolist()) == {
        1,
        2,
    }
    found = find_mixed(problem, choices=pinned_values_of((("zero", ("3",)),), ()))
    assert all(rule.parameter != 1 for rule in found.plan.shards)
    assert "zero {3} over the two or more replicas" in found.certificate.space
    with pytest.raises(UsageError, match="has no lanes with the pinned values"):
        stage_table(
            tiny(CLUSTER, batch=8, runtime="megatron-2022"),
            pinned_values_of((("zero", ("3",)),), ()),
        )


def test_a_pool_without_a_pinned_degree_has_no_stage() -> None:
    table = stage_table(
        tiny("a100-sxm-40gb:2+v100-sxm-16gb:1", batch=2), pinned_values_of((("tp", ("2",)),), ())
    )
    assert set(table.pool.tolist()) == {0}
    assert len(table.pools) == 2


@pytest.mark.parametrize(
    "pins",
    [
        pytest.param((("tp", ("1",)),), marks=pytest.mark.proof),
        pytest.param((("mbs", ("2",)),), marks=pytest.mark.proof),
        (("tp", ("2",)), ("mbs", ("1",))),
    ],
)
def test_a_part_of_the_space_is_no_faster_and_its_stages_have_what_is_pinned(
    pins: tuple[tuple[str, tuple[str, ...]], ...],
) -> None:
    problem = tiny(CLUSTER, batch=8)
    whole, part = whole_space(), find_mixed(problem, choices=pinned_values_of(pins, ()), top=3)
    assert part.step_time_s >= whole.certificate.lower_bound_s
    table, wanted = stage_table(problem, pinned_values_of(pins, ())), dict(pins)
    for lane in part.detail.lanes if part.detail is not None else ():
        for row in lane.rows:
            assert str(table.tp[row]) in wanted.get("tp", (str(table.tp[row]),))
            assert str(table.mbs[row]) in wanted.get("mbs", (str(table.mbs[row]),))


def test_degrees_of_experts_can_be_pinned_where_there_are_experts() -> None:
    pins = (("ep", ("2",)),)
    table = stage_table(
        tiny(CLUSTER, batch=8, kind="experts"), pinned_values_of(pins, (), experts=True)
    )
    assert {(mesh.tp, mesh.dp, mesh.ep) for _, mesh in table.meshes} == {(1, 2, 2), (2, 1, 2)}
    # A member's microbatches are of the usual sizes, a replica's of as many times more as it has
    # members.
    assert set((table.mbs // (table.size // table.tp)).tolist()) == {1, 2, 4, 8}
    with pytest.raises(UsageError, match="all pipelines of a mixed cluster have ep=1"):
        pinned_values_of(pins, ())


@pytest.mark.parametrize("runtime", ["megatron-core", "megatron-bridge"])
def test_an_option_said_with_the_runtime_keeps_its_value_also_where_it_is_the_runtimes_own(
    runtime: str,
) -> None:
    """A name with an option at its own value is a decision, as a pin is; a name without it leaves
    the choice to the search."""
    free = Request(
        model="qwen2.5-0.5b",
        cluster=CLUSTER,
        seq_len=1024,
        global_batch=8,
        precision="fp16",
        runtime=runtime,
    )
    whole = _options_of_pools(free)
    searched = [
        (name, value)
        for name, value in problem_of(free).runtime.own
        if name in whole or name == "recompute_norms"
    ]
    assert dict(searched).keys() >= {"tp_overlap", "recompute_norms"}
    for name, own in searched:
        left = _options_of_pools(replace(free, runtime=f"{runtime} {name}={own}"))
        assert left == _options_of_pools(replace(free, pins=((name, (own,)),)))
        assert name not in left or left[name] == {own}


def _options_of_pools(request: Request) -> dict[str, set[str]]:
    """Values of options that the grids of the pools alone may have, where some may have one that is
    not the runtime's own."""
    problem = problem_of(request)
    found: dict[str, set[str]] = {}
    for pool in pools_of(problem.cluster):
        choices = choices_for(request, problem)
        task = PoolGridSearch(
            pool=pool, choices=choices, seconds=0.0, stop=None, memory=SEARCH_MEMORY
        )
        for row in pool_grid_space(problem, task)[1].option_parts():
            for name, value in {**dict(problem.runtime.own), **dict(row.chosen)}.items():
                found.setdefault(name, set()).add(value)
    return {
        name: values
        for name, values in found.items()
        if values != {dict(problem.runtime.own)[name]}
    }


def test_the_order_of_pins_is_no_part_of_the_answer() -> None:
    one, other = (("tp", ("1",)), ("mbs", ("2",))), (("mbs", ("2",)), ("tp", ("1",)))
    assert pinned_values_of(one, ()) == pinned_values_of(other, ())
    assert pinned_values_of((), ()) == PinnedValues()


def test_an_axis_with_one_value_takes_pins_that_have_it() -> None:
    assert pinned_values_of((("zero", ("1", "2")),), (("schedule", ("gpipe",)),)).tp == ()
    with pytest.raises(UsageError, match="schedule=1f1b"):
        pinned_values_of((), (("schedule", ("1f1b",)),))


@pytest.mark.parametrize("limit_s", cases([0.0, 0.05, 0.3, 1.0], 1))
def test_a_search_stopped_at_the_same_looks_has_the_same_answer(limit_s: float) -> None:
    problem = tiny(CLUSTER, batch=8)
    stopped = find_mixed(problem, top=3, time_limit_s=limit_s)
    assert find_mixed(problem, top=3, stops=stops_of(stopped.certificate)) == stopped
    c = stopped.certificate
    assert 0 < c.lower_bound_s <= c.best_s
    assert part_of(c).lower_bound_s <= whole_space().step_time_s * (1 + 1e-12)


@pytest.mark.parametrize(
    "where", chosen(["alone", "first plan", "polish", "prove"], ["alone", "prove"])
)
def test_a_search_that_is_stopped_by_hand_ends_with_what_it_has(where: str) -> None:
    problem = tiny(CLUSTER, batch=8)

    def stop(text: str, done: int, total: int) -> None:
        if where in text and (done or where != "alone"):
            STOP.set()

    try:
        stopped = find_mixed(problem, progress=stop)
    finally:
        STOP.clear()
    c, stops = stopped.certificate, stops_of(stopped.certificate)
    assert stops.search > 0
    if where in (
        "alone",
        "first plan",
    ):  # where there is nothing to polish, or nothing behind a proof, the clock is not looked at
        assert stops.composed > 0
    assert (stops.grids[1] > 0) == (where == "alone")
    assert 0 < c.lower_bound_s <= c.best_s
    assert find_mixed(problem, stops=stops) == stopped


def test_grids_that_are_given_up_leave_a_bound_and_are_given_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool whose grids end by the clock without a plan is bounded by what any plan whatever on
    its devices takes."""
    problem, find = tiny(CLUSTER, batch=8), pool_grids.find

    def late(own: Problem, *some: Any, **more: Any) -> Answer:
        if own.cluster.node.accelerator.name.startswith("v100"):
            raise out_of_time()
        return find(own, *some, **more)

    monkeypatch.setattr(pool_grids, "find", late)
    found = find_mixed(problem)
    one, other = part_of(found.certificate).alone
    assert (one.stopped_at, other.stopped_at) == (0, GIVEN_UP)
    assert other.step_time_s is None
    assert 0 < found.certificate.lower_bound_s <= (other.lower_bound_s or 0.0)
    assert find_mixed(problem, stops=stops_of(found.certificate)) == found
    monkeypatch.undo()
    assert find_mixed(problem, stops=stops_of(found.certificate)) == found


def test_what_a_device_is_worth_is_of_the_tightest_frame() -> None:
    subspace = Subspace(replicas=(1, 4), tp=1, nodes=(0.0, 2.0))
    loose = Dual(
        frame=subspace, limit_s=2.0, devices=(1.0, 1.0), nodes=0.0, replicas=0.0, samples=4.0
    )
    tight = Dual(
        frame=subspace, limit_s=2.0, devices=(3.0, 0.5), nodes=2.0, replicas=0.0, samples=8.0
    )
    assert device_worth_seconds([ClosedSubspaces(options=(), duals=(loose, tight))], (8, 4)) == (
        (3.0 + 2.0 / 8) / 4,
        (0.5 + 2.0 / 4) / 4,
    )
    assert device_worth_seconds([], (8, 4)) == (None, None)
