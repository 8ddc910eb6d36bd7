"""Rows whose layers cost the same are priced once, and what each costs is bit for bit what it costs
by itself."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.cost.tables.rows_with_distinct_costs import distinct_rows
from shardwright.search.grid.bounds.member_price_tables import _layer_rows
from shardwright.search.grid.members.enumerate_members import enumerate_members
from shardwright.search.grid.members.legal_degrees_and_axis_orders import idle_meshes
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from tests.search.problems import facts_of, real_problem


@pytest.mark.parametrize(
    ("model", "cluster", "idle"),
    [
        ("qwen3-30b-a3b", "h100-sxm:32", False),
        ("qwen3-30b-a3b", "h100-sxm:48", True),
        ("llama-3.2-1b", "h100-sxm:32", False),
    ],
)
def test_each_row_costs_what_its_like_costs(model: str, cluster: str, idle: bool) -> None:
    problem = real_problem(model, cluster, seq_len=4096, global_batch=96)
    facts = facts_of(problem)
    space = standard_space(problem, facts)
    meshes = idle_meshes(space, facts) if idle else None
    rows, _ = _layer_rows(problem, enumerate_members(problem, space, facts, meshes=meshes))
    few, place = distinct_rows(problem, rows)
    whole, once = layer_table(problem, rows), layer_table(problem, few)
    for field in fields(LayerTable):
        assert np.array_equal(getattr(once, field.name)[..., place], getattr(whole, field.name)), (
            field.name
        )
    assert (len(few) < len(rows) / 2) == ("a3b" in model), (len(few), len(rows))
