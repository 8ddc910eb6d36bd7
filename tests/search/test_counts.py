"""Strategies of meshes are counted without being listed: as many as there are when they are
listed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.api.searches.grid_search import plan
from shardwright.program.training_problem import under
from shardwright.runtime.framework_description import Runtime
from shardwright.search.grid.members.enumerate_members import enumerate_members
from shardwright.search.grid.members.grid_search_space import supported_option_parts
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.search.grid.members.member_counts_by_mesh import count_members
from shardwright.search.search_request import Request
from shardwright.strategy.grid.expert_mesh import FOLDED, fold, mesh_folds
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.search.brute import count
from tests.search.problems import Case, llama_405b, small_case
from tests.search.test_one_law_of_spaces import case_of
from tests.tiers import examples, seeds


def stages_of(runtime: Runtime) -> dict[str, Any]:
    return {"zero_stages": runtime.zero_stages, "zero_with_pipeline": runtime.zero_with_pipeline}


def assert_counts_are_lists(case: Case) -> int:
    total = 0
    for part in supported_option_parts(case.problem, case.space):
        problem = under(case.problem, part.chosen)
        for meshes in (full_meshes(part, case.facts), idle_meshes(part, case.facts)):
            counted = count_members(
                part,
                replace(case.facts, lone_stages=lone_stages(problem.runtime)),
                meshes,
                **stages_of(problem.runtime),
            )
            listed = enumerate_members(problem, part, case.facts, meshes=meshes)
            assert int(counted.distinct.sum()) == listed.num_members
            assert int(counted.legal.sum()) == listed.enumerated - listed.illegal
            total += listed.num_members
    return total


@pytest.mark.parametrize("seed", seeds(6, 300, first=9100))
def test_counts_are_those_of_lists(seed: int) -> None:
    case = small_case(seed, most=20000)
    assert assert_counts_are_lists(case) + assert_counts_are_lists(case_of(seed)) > 0


def test_each_mesh_has_its_own_count() -> None:
    case = next(c for c in map(small_case, range(50)) if len(full_meshes(c.space, c.facts)) > 4)
    meshes = full_meshes(case.space, case.facts)
    together = count_members(case.space, case.facts, meshes, **stages_of(case.problem.runtime))
    for row in range(len(meshes)):
        one = enumerate_members(
            case.problem, case.space, case.facts, meshes=meshes.take(np.array([row]))
        )
        assert one.num_members == together.distinct[row]


def test_the_meshes_of_405b_have_as_many_as_when_they_are_crossed() -> None:
    case = llama_405b()
    full = full_meshes(case.space, case.facts)
    listed = enumerate_members(case.problem, case.space, case.facts)
    counted = count_members(case.space, case.facts, full, **stages_of(case.problem.runtime))
    assert int(counted.distinct.sum()) == listed.num_members


@pytest.mark.parametrize("devices", [4, 6])
def test_the_strategies_of_a_certificate_exist(devices: int) -> None:
    """What the screen calls distinct legal strategies, against every combination of axis values
    judged alone."""
    few = {
        "mbs": ("1", "2"),
        "recompute_layers": ("0", "4"),
        "vpp": ("1",),
        "order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    }
    asked = Request(
        model="llama-3.2-1b",
        cluster=f"h100-sxm:{devices}",
        seq_len=512,
        global_batch=12,
        runtime="fsdp1",
        pins=tuple(few.items()),
        top=0,
    )
    answer = plan(asked)
    problem = problem_of(asked)
    facts = facts_of(problem)
    counted = count(problem, space_of(asked, problem, facts), facts)
    assert answer.certificate.strategies == len(counted.grids)
    assert (answer.certificate.illegal, answer.certificate.duplicates) == (
        counted.illegal,
        counted.duplicates,
    )


@examples(100, 5000)
@given(seed=st.integers(0, 10**9))
def test_columns_fold_as_grids_do(seed: int) -> None:
    """Grids with experts, of every order, with sizes that are no powers of one number."""
    generator = random.Random(seed)
    grids: list[Grid] = []
    order = generator.choice(list(itertools.permutations(("tp", "cp", "ep", "dp"))))
    while len(grids) < 8:
        tp, dp, ulysses, ring, etp = (generator.choice((1, 2, 3, 4, 6)) for _ in range(5))
        cp = ulysses * ring
        ep = generator.choice([e for e in range(1, 49) if tp * cp * dp % (etp * e) == 0] or [0])
        if ep:
            sp = generator.random() < 0.5
            grids.append(
                Grid(
                    tp=tp,
                    cp=cp,
                    dp=dp,
                    ulysses=ulysses,
                    ep=ep,
                    etp=etp,
                    sp=sp,
                    order=(*order, "pp"),
                )
            )
    columns = {
        name: np.array([int(getattr(grid, name)) for grid in grids], dtype=np.int64)
        for name in FOLDED
    }
    assert mesh_folds(columns, order).tolist() == [fold(grid) is not None for grid in grids]
