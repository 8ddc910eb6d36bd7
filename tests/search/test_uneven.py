"""B0 of grids whose first and last stages hold another number of layers, where microbatches wait for the fullest stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.critical_path import path_seconds
from shardwright.cost.step_costs import step_costs
from shardwright.search.grid.bounded import bound_space
from shardwright.search.grid.members import member_grid
from shardwright.search.grid.space import standard_space
from tests.search.problems import facts_of, real_problem
from tests.tiers import in_both, many, random_of

ENDS = ((0, 0), (1, 1), (2, 6), (6, 2), (7, 0), (0, 7), (8, 8))
"""Layers of the first and the last of eight stages of a model with 32; 0 = as many as the others."""


@in_both
@pytest.mark.parametrize("runtime", ["megatron-core", "megatron-2022"])
def test_bounds_of_uneven_pipelines_are_near_the_path(runtime: str, record_property: Callable[[str, object], None]) -> None:
    problem = real_problem("llama-3.1-8b", "h100-sxm:64", seq_len=4096, global_batch=192, runtime=runtime)
    facts, generator, ratios = facts_of(problem), random_of(f"uneven {runtime}"), []
    base = standard_space(problem, facts)
    some = {"pp": (8,), "vpp": (1,), "schedule": ("1f1b",), "zero": (0, 1), "offload": (0,)}
    values = tuple((axis, some.get(axis, value)) for axis, value in base.values)
    for first, last in ENDS:
        if (facts.layers - first - last) % (8 - (first > 0) - (last > 0)):
            continue
        bounded = bound_space(problem, replace(base, first=first, last=last, values=values), facts, capacity=10**15)
        for place in generator.sample(range(bounded.members.num_members), min(many(20, 200), bounded.members.num_members)):
            member = member_grid(bounded.members, place)
            path = path_seconds(problem, member, step_costs(problem, member, bounded.prepared.priced(place)))
            ratios.append(float(bounded.seconds[place]) / path)
    record_property("mean and fifth percentile", (np.mean(ratios), np.quantile(ratios, 0.05)))
    assert len(ratios) > 50
    assert max(ratios) <= 1.0
    assert np.quantile(ratios, 0.05) > 0.96
