"""Positions are searched plans of their own requests, and a break-even is where plans change."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shardwright.api.request_to_problem import load_cluster, problem_of
from shardwright.api.searches.grid_search import plan
from shardwright.api.what_if.axes_of_request import (
    AXES,
    POSITIONS,
    effect_of_price,
    own_value,
    usual_values,
    why_without,
)
from shardwright.api.what_if.search_best_plans_along_axis import (
    break_even,
    plans_differ,
    what_if,
    what_if_of_axes,
)
from shardwright.errors import ClusterError, UsageError
from shardwright.search.parallel.engine_by_name import engine_of
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from shardwright.search.what_if_best_plans_result import WhatIfPosition
from shardwright.simulator.simulate_plan import plan_of_grid
from tests.tiers import chosen

SMALL = Request(
    model="llama-3.1-8b",
    cluster="h100-sxm:16",
    seq_len=4096,
    global_batch=32,
    pins=(
        *(("recompute", ("none", "full")), ("offload", ("0",)), ("zero", ("1",))),
        *(("cp", ("1",)), ("pp", ("1",)), ("tp_overlap", ("none",))),
    ),
)


def replanned(position: WhatIfPosition) -> None:
    """Assert that a full search of the position's request finds the same plan."""
    answer = plan(position.request, sensitive=False)
    assert position.found is not None
    simulation = position.found.simulation
    assert (answer.grid, answer.prediction) == (simulation.grid, simulation.prediction)
    assert answer.certificate.optimal == position.found.certificate.optimal


@pytest.mark.parametrize("axis", chosen(AXES, ("global_batch", "devices", "memory", "price")))
def test_positions_are_plans_of_their_requests(axis: str) -> None:
    found = what_if(SMALL, axis)
    values = [position.value for position in found.positions]
    assert values == sorted(values)
    assert len(values) == POSITIONS
    assert own_value(SMALL, AXES[axis]) in values
    for position in (found.positions[0], found.positions[-1]):
        if position.found is not None:
            replanned(position)
    changes = [pair for pair in pairwise(found.positions) if plans_differ(*pair)]
    assert len(found.break_evens) == len(changes)
    for (low, high), between in zip(changes, found.break_evens, strict=True):
        assert low.value <= between.low.value < between.high.value <= high.value
        assert between.low.strategy == low.strategy != between.high.strategy
        if AXES[axis].is_continuous:
            assert between.high.value <= between.low.value * 1.01


def test_engines_give_one_answer() -> None:
    axes: dict[str, tuple[float, ...]] = {"memory": (0.5, 1.0), "global_batch": (16, 32)}
    with engine_of(workers=2, least_s=0.0) as engine:
        assert what_if_of_axes(SMALL, axes, engine=engine) == what_if_of_axes(SMALL, axes)


def test_break_even_is_searched_on_both_sides() -> None:
    found = break_even(SMALL, "memory", 0.4, 1.0)
    assert found is not None
    replanned(found.low)
    replanned(found.high)
    assert found.low.strategy != found.high.strategy
    assert found.low.value < found.high.value <= found.low.value * 1.01


def test_break_even_of_a_property_of_plans() -> None:
    def is_slower(low: WhatIfPosition, other: WhatIfPosition) -> bool:
        assert low.found is not None
        assert other.found is not None
        steps = [p.found.simulation.prediction.step_time_s for p in (low, other) if p.found]
        return steps[1] > 6 * steps[0]

    found = break_even(SMALL, "global_batch", 16, 1024, is_slower)
    assert found is not None
    assert found.high.value == 2 * found.low.value
    low = what_if(SMALL, "global_batch", (16,)).positions[0]
    assert not is_slower(low, found.low)
    assert is_slower(low, found.high)


def test_equal_plans_have_no_break_even() -> None:
    assert break_even(SMALL, "memory", 1.0, 1.001) is None


def test_general_plans_of_equal_sizes_differ() -> None:
    """The text of a general plan has its sizes alone; the plans themselves are compared."""
    (position,) = what_if(SMALL, "memory", (1.0,)).positions
    assert position.found is not None
    simulation = position.found.simulation
    assert simulation.grid is not None
    problem = problem_of(position.request)
    one, other = (
        replace(
            position,
            found=replace(
                position.found,
                simulation=replace(
                    simulation, name="p", grid=None, plan=plan_of_grid(problem, grid)
                ),
            ),
        )
        for grid in (simulation.grid, replace(simulation.grid, zero=2))
    )
    assert one.strategy == other.strategy
    assert plans_differ(one, other)
    assert not plans_differ(one, one)


def test_nothing_fits() -> None:
    found = what_if(SMALL, "memory", (0.05, 1.0))
    nothing, base = found.positions
    assert nothing.found is None
    assert nothing.why
    assert nothing.strategy == ""
    assert nothing.usd_per_million_tokens is None
    assert base.found is not None
    assert base.why == ""
    (change,) = found.break_evens
    assert change.low.found is None
    assert change.high.found is not None


def test_prices_are_given_or_of_the_cluster() -> None:
    listed = what_if(SMALL, "price", (1.0, 2.0)).positions
    given = what_if(SMALL, "price", (1.0, 2.0), prices={"": 5.9}).positions
    costs = [position.usd_per_million_tokens for position in (*listed, *given)]
    assert None not in costs
    assert costs[1] == pytest.approx(2 * (costs[0] or 0)) == pytest.approx(costs[2])
    assert [position.prices for position in given] == [(("", 5.9),), (("", 11.8),)]
    assert {position.request.cluster for position in given} == {"h100-sxm:16"}


def test_given_prices_of_devices_without_a_list_price() -> None:
    request = replace(SMALL, cluster="ascend-910b:8", runtime="", precision="")
    values = usual_values(request, AXES["price"], {"ascend-910b": 2.0})
    assert len(values) == POSITIONS
    assert usual_values(request, AXES["price"], {"h100-sxm": 2.0}) == (1.0,)


def test_stopped_searches_are_left_out() -> None:
    STOP.set()
    try:
        found = what_if(SMALL, "memory", (0.5, 1.0))
    finally:
        STOP.clear()
    assert found.positions == ()
    assert found.break_evens == ()


@pytest.mark.parametrize(
    ("cluster", "limit", "devices"),
    [
        ("h100-sxm:8", 0, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("gb200-nvl72:64", 0, (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
        ("h100-sxm:24", 0, (3, 6, 24, 48, 96, 192, 384, 768, 1536)),
        ("h100-sxm:64", 16, (1, 2, 4, 8, 16, 32, 64)),
        ("h100-sxm:64,network=2x", 0, (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
    ],
)
def test_numbers_of_devices_make_whole_nodes(
    cluster: str, limit: int, devices: tuple[int, ...]
) -> None:
    request = Request(
        model="llama-3.1-8b",
        cluster=cluster,
        seq_len=4096,
        global_batch=32,
        max_devices=limit,
    )
    assert usual_values(request, AXES["devices"], {}) == devices


def test_an_expression_without_a_count_has_one_position() -> None:
    request = Request(
        model="llama-3.1-8b", cluster="dgx-superpod-h100", seq_len=4096, global_batch=32
    )
    size = load_cluster("dgx-superpod-h100").num_devices
    assert usual_values(request, AXES["devices"], {}) == (size,)


def test_axes_that_say_nothing() -> None:
    island = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=32)
    assert "one scale-up island" in why_without(island, AXES["network"], {})
    unpriced = Request(
        model="llama-3.1-8b", cluster="ascend-910b:16", seq_len=4096, global_batch=32
    )
    assert "no price" in why_without(unpriced, AXES["price"], {})
    assert why_without(unpriced, AXES["price"], {"": 2.0}) == ""
    assert why_without(SMALL, AXES["network"], {}) == ""
    assert "same at every position" in effect_of_price(SMALL, AXES["price"])
    assert effect_of_price(SMALL, AXES["memory"]) == ""


def test_refused_questions() -> None:
    with pytest.raises(UsageError, match="no axis 'bandwith'"):
        what_if(SMALL, "bandwith")
    with pytest.raises(ClusterError, match="do not fill nodes"):
        what_if(SMALL, "devices", (17,))
    for space in ("joint", "exact"):
        request = Request(
            model="llama-3.1-8b",
            cluster="h100-sxm:8",
            seq_len=4096,
            global_batch=32,
            space=space,
        )
        with pytest.raises(UsageError, match="several"):
            what_if(request, "memory")
