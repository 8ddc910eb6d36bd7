"""Synchronisation of one layer by hand, on links without latency: bytes that a ring must send over
the bandwidth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.gradients.layer_synchronisation_table_classes import SyncTable
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid, rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model, expert_model

ISLAND, CARD = 64e9, 4e9
ANY = replace(RUNTIME, name="any", zero_stages=(0, 1, 2, 3), zero_with_pipeline=3, bucket_bytes=0)
DENSE, SPARSE = dense_model(layers=4), expert_model(dense=1, sparse=3, experts=8)
LAYER = 1


def problem(model: object, *, devices: int = 16, node: int = 8) -> Problem:
    """Links without latency; 64 GB/s inside a node and 4 GB/s a device across."""
    cluster = cluster_of(devices, node=node)
    kind = cluster.node

    def plain(bandwidth: float) -> dict[str, float]:
        return {
            "latency_s": 0.0,
            "bandwidth": bandwidth,
            "reverse_bandwidth": bandwidth,
            "efficiency": 1.0,
        }

    kind = replace(
        kind,
        nics=kind.num_devices,
        scale_up=replace(kind.scale_up, **plain(ISLAND)),  # type: ignore[arg-type]
        nic=replace(kind.nic, **plain(CARD)),  # type: ignore[arg-type]
        in_network_reduction=False,
    )
    return problem_of(
        model, replace(cluster, groups=(replace(cluster.groups[0], kind=kind),)), runtime=ANY
    )  # type: ignore[arg-type]


def synced(model: object, grid: Grid) -> SyncTable:
    rows = rows_of([grid])
    return mesh_table(
        problem(model, devices=grid.devices), rows, np.array([grid.shard or grid.dp * grid.cp])
    ).sync


@pytest.mark.parametrize("holders", [2, 4, 8])
def test_inside_a_node(holders: int) -> None:
    sync = synced(DENSE, Grid(dp=holders, tp=8 // holders))
    elements = int(sync.dense[LAYER, 0])
    # Gains of norms are summed by more devices where the stream is cut over tp, which these rows do
    # not tell: counted apart.
    spread = int(sync.spread[LAYER, 0])
    assert elements + spread >= DENSE.blocks[LAYER].num_parameters // (8 // holders)
    assert spread < elements / 100
    part = (holders - 1) / holders / ISLAND
    # fp32 gradients, bf16 parameters.
    assert sync.all_reduce[LAYER, 0] == pytest.approx(2 * 4 * elements * part, rel=1e-9)
    assert sync.reduce[LAYER, 0] == pytest.approx(4 * elements * part, rel=1e-9)
    assert sync.gather[LAYER, 0] == pytest.approx(2 * elements * part, rel=1e-9)


def test_shards_inside_a_node_and_copies_across() -> None:
    """Hybrid sharding of 8 within nodes: reduce_scatter inside, then all_reduce of an eighth
    across; gathers stay inside."""
    elements = DENSE.blocks[LAYER].num_parameters
    sync = synced(DENSE, Grid(dp=32, zero=3, shard=8))
    inside, across = 7 / 8 / ISLAND, 2 * 3 / 4 / CARD
    assert sync.gather[LAYER, 0] == pytest.approx(2 * elements * inside, rel=1e-9)
    assert sync.reduce[LAYER, 0] == pytest.approx(
        4 * elements * inside + 4 * elements / 8 * across, rel=1e-9
    )
    assert sync.reduce[LAYER, 0] <= sync.all_reduce[LAYER, 0] * (1 + 1e-9)


def test_no_holders_no_traffic() -> None:
    sync = synced(DENSE, Grid(tp=4, pp=2))
    assert not sync.all_reduce.any()
    assert not sync.reduce.any()
    assert not sync.gather.any()


def test_experts_are_synchronised_among_their_own_copies() -> None:
    """ep 8 of dp 16: an expert has two holders, the rest of the layer sixteen."""
    sync = synced(SPARSE, Grid(dp=16, ep=8))
    sparse = next(i for i, b in enumerate(SPARSE.blocks) if b.name == "sparse")
    weights = SPARSE.blocks[sparse]
    experts = sum(
        p.size for o in weights.operators for p in o.parameters if p.klass.value == "experts"
    )
    assert int(sync.experts[sparse, 0]) * 8 == experts
    assert int(sync.dense[sparse, 0]) == weights.num_parameters - experts
    assert int(sync.expert_shard[0]) == 2
    # ep 8 of dp 8: each expert has one holder and only the dense part is summed.
    alone = synced(SPARSE, Grid(dp=8, ep=8))
    assert alone.expert_shard.tolist() == [1]
    assert alone.all_reduce[sparse, 0] == pytest.approx(
        2 * 7 / 8 * 4 * int(alone.dense[sparse, 0]) / ISLAND, rel=1e-9
    )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_step_has_the_traffic_of_its_stage(zero: int) -> None:
    """ZeRO 0: all_reduce at the end. 1: gathers before, reduce_scatter after. 2 and 3 reduce (and
    gather) with every microbatch."""
    grid = Grid(dp=8, zero=zero)
    costs = step_costs(problem(DENSE, devices=8), grid, price_grid(problem(DENSE, devices=8), grid))
    sync = synced(DENSE, grid)
    counts = np.array([1, 4, 1])
    end = {0: sync.all_reduce, 1: sync.reduce, 2: 0 * sync.reduce, 3: 0 * sync.reduce}[zero]
    assert costs.reduce_s[0] == pytest.approx(float(counts @ end[:, 0]), rel=1e-9)
    assert costs.gather_s[0] == pytest.approx(
        float(counts @ sync.gather[:, 0]) if zero in (1, 2) else 0.0, rel=1e-9
    )
