"""What a slower network costs, from the bounds of the search that came before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.searches import grid_search
from shardwright.hardware.scale_network_limit_devices_reserve_memory import scale_network
from shardwright.search.grid.find_best_grid import find, search_and_answer
from shardwright.search.grid.members.grid_search_space import option_part_of_grid
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import limit_of
from shardwright.simulator.simulate_plan import simulate_grid
from tests.tiers import chosen

REQUESTS = [
    Request(model="llama-3.2-1b", cluster="h100-sxm:16", seq_len=2048, global_batch=32),
    Request(model="mixtral-8x7b", cluster="h100-sxm:16", seq_len=4096, global_batch=32),
    Request(model="llama-3.1-8b", cluster="a100-sxm-40gb:24", seq_len=4096, global_batch=36),
    Request(model="gpt-oss-20b", cluster="a100-sxm-40gb:24", seq_len=4096, global_batch=32),
    Request(
        model="llama-2-7b",
        cluster="v100-sxm-32gb:32",
        seq_len=2048,
        global_batch=48,
        space="exhaustive",
    ),
]


@pytest.mark.parametrize(
    "request_", chosen(REQUESTS, [REQUESTS[1], REQUESTS[2], REQUESTS[4]]), ids=lambda r: r.model
)
def test_the_same_as_a_search_of_the_slower_cluster_that_knows_nothing(request_: Request) -> None:
    said = grid_search.plan(request_).sensitivity
    request = with_defaults(request_)
    problem = problem_of(request)
    facts, capacity = facts_of(problem), capacity_of(request, problem)
    space = space_of(request, problem, facts)
    answer, searched = search_and_answer(
        problem, space, facts, capacity=capacity, top=request.top + 1, limit=limit_of(float("inf"))
    )
    slower, row = (
        replace(problem, cluster=scale_network(problem.cluster, factor=0.9)),
        option_part_of_grid(space, answer.grid),
    )
    whole = find(slower, row, facts, capacity=capacity, top=1)
    assert said is not None
    assert (said.best_s, said.best_grid) == (whole.prediction.step_time_s, whole.grid)
    assert said.same_plan_s == simulate_grid(slower, answer.grid).step_time_s
    # Most meshes are left out, and none that was not bounded.
    every = full_meshes(row, facts)
    reached = searched.may_reach(every, row, said.same_plan_s)
    assert 0 < reached.sum() < len(every)
    assert searched.may_reach(every, row, np.inf).all()
    if row.fewest:
        idle = idle_meshes(row, facts)
        assert searched.may_reach(idle, row, said.same_plan_s).sum() < max(len(idle), 1)


def test_none_is_looked_for_where_none_is_shown() -> None:
    assert grid_search.plan(REQUESTS[0], sensitive=False).sensitivity is None
