"""Pipelines whose stages are each a grid are read as meshes, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

from shardwright.strategy.grid.group_plan_stages_by_degrees import (
    joined_mesh,
    meshes_of,
    stages_of,
)
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.plan.pipeline_order import NamedOrder
from tests.frameworks.flagscale.test_write import staged

FAST, SLOW = Grid(tp=4, sp=True, dp=2, zero=1), Grid(tp=8, sp=True, dp=2, zero=1)


def test_runs_of_like_stages_are_meshes() -> None:
    one = staged([(FAST, 20), (SLOW, 12), (SLOW, 8)], recomputed=(5, 0, 0))
    found = meshes_of(one.plan, model=one.problem.model)
    assert found is not None
    whole, meshes = found
    assert [(mesh.grid.tp, mesh.grid.dp, mesh.layers, mesh.recomputed) for mesh in meshes] == [
        (4, 2, (20,), (5,)),
        (8, 2, (12, 8), (0, 0)),
    ]
    assert [mesh.bases for mesh in meshes] == [((0,),), ((8,), (24,))]
    assert (whole.tp, whole.pp, whole.layers, whole.zero) == (4, 3, (20, 12, 8), 1)
    assert (whole.recompute, whole.recompute_layers) == (Recompute.FULL, 5)
    first, second = list(stages_of(meshes))[1:]
    assert joined_mesh(first, second) == meshes[1]


def test_like_lanes_are_replicas() -> None:
    one = staged([(Grid(tp=2, sp=True, zero=1), 30), (Grid(tp=4, sp=True, zero=1), 10)], lanes=4)
    found = meshes_of(one.plan, model=one.problem.model)
    assert found is not None
    assert [(mesh.grid.tp, mesh.grid.dp) for mesh in found[1]] == [(2, 4), (4, 4)]
    assert found[1][0].bases == ((0, 2, 4, 6),)


def test_lanes_that_differ_and_other_orders_are_none() -> None:
    one = staged([(Grid(tp=2, sp=True, zero=1), 30), (Grid(tp=4, sp=True, zero=1), 10)], lanes=2)
    plan, model = one.plan, one.problem.model
    unequal = replace(
        plan, lanes=(plan.lanes[0], replace(plan.lanes[1], samples=plan.lanes[1].samples * 2))
    )
    assert meshes_of(unequal, model=model) is None
    other = replace(
        plan, orders=tuple(NamedOrder(schedule="gpipe", lanes=order.lanes) for order in plan.orders)
    )
    assert meshes_of(other, model=model) is None
