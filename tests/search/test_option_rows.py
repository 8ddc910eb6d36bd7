"""Rows of options that share what they can find what each finds by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.api.request_to_problem import capacity_of, facts_of, problem_of, space_of
from shardwright.search.grid.bounds.layer_times_with_nearest_placement import near_layers
from shardwright.search.grid.bounds.mesh_bounds import MARGIN, mesh_bounds
from shardwright.search.grid.bounds.mesh_bounds_with_relaxed_options import NO_ROOM, relaxed_bounds
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_request import Request
from tests.search.problems import small_case
from tests.tiers import seeds

ASKED = Request(
    model="qwen3-30b-a3b",
    cluster="h100-sxm:24",
    seq_len=4096,
    global_batch=72,
    pins=(
        ("tp_overlap", ("userbuffers", "dgrad")),
        ("dispatcher", ("alltoall", "flex")),
        ("zero", ("1",)),
    ),
)


def test_rows_together_are_rows_one_after_another() -> None:
    """Each row alone, of an equal problem of which no table is known."""
    problem = problem_of(ASKED)
    facts = facts_of(problem)
    space, capacity = space_of(ASKED, problem, facts), capacity_of(ASKED, problem)
    together = search(problem, space, facts, capacity=capacity, top=1)
    alone = [
        search(replace(problem), part, facts, capacity=capacity, top=1)
        for part in space.option_parts()
    ]
    assert len(alone) == 4
    best = min((one.outcome.ranked[0] for one in alone), key=lambda one: one.step_time_s)
    assert together.outcome.ranked[0].step_time_s == best.step_time_s
    assert together.outcome.lower_bound_s == best.step_time_s
    assert len({one.outcome.ranked[0].step_time_s for one in alone}) > 1


@pytest.mark.parametrize("seed", seeds(2, 40, first=5300))
def test_bounds_that_look_no_closer_than_needed_say_as_much(seed: int) -> None:
    """Below what is known to be reached they are the same; at or above it they say no more than a
    closer look."""
    case = small_case(seed)
    meshes = full_meshes(case.space, case.facts)
    if case.space.fewest:
        meshes = meshes.joined(idle_meshes(case.space, case.facts))
    near = near_layers(case.problem, case.space, case.facts, meshes.columns)
    whole = relaxed_bounds(case.problem, case.space, case.facts, meshes, capacity=10**15)
    assert np.array_equal(
        whole,
        relaxed_bounds(case.problem, case.space, case.facts, meshes, capacity=10**15, near=near),
    )
    coarse = mesh_bounds(case.problem, case.space, case.facts, meshes, near=near)
    apart = [
        mesh_bounds(case.problem, case.space, case.facts, meshes.take(np.array([row])), near=near)
        for row in range(len(meshes))
    ]
    assert np.array_equal(coarse, np.concatenate([np.empty(0), *apart]))
    members = whole < NO_ROOM
    assert (coarse[members] * MARGIN <= whole[members]).all()
    for until in np.quantile(whole[members], (0.1, 0.5, 0.9)) if members.any() else ():
        some = relaxed_bounds(
            case.problem,
            case.space,
            case.facts,
            meshes,
            capacity=10**15,
            near=near,
            until_s=float(until),
        )
        below = whole < until
        assert np.array_equal(some[below], whole[below])
        assert (some[~below] >= until).all()
        assert (some * MARGIN <= whole).all()
