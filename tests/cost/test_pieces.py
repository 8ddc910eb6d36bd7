"""ZeRO-3's collectives in a runtime's own pieces, by hand: joined matrices, lists, parameters
gathered again, replicas apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.cost.gradients.block_parameter_elements_by_reduction_group import trained_matrices
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import (
    LISTED_GATHER_OPERATORS,
    LISTED_REDUCE_OPERATORS,
)
from shardwright.cost.gradients.layer_synchronisation_table_classes import SyncTable
from shardwright.cost.kernels.accelerator_rates import OPERATOR_S
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    axes_of,
    move_seconds,
    network_of,
)
from shardwright.cost.step.shared_scalar_cost_formulas import gathers_again
from shardwright.cost.step.strategy_task_seconds import SHARDING_PART, step_costs
from shardwright.cost.tables.block_layer_mesh_table_classes import MeshTable
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.kernel_compilation import python_form
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.units import MIB
from tests.cost.prices import price_grid, rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model, expert_model

LAYERS = replace(
    RUNTIME,
    name="layers",
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    bucket_bytes=0,
)
LISTS = replace(LAYERS, name="lists", listed_collectives=True)
MODEL = dense_model(layers=4)
LAYER = 1
DENSE = 7  # q, k, v and the output of attention; gate, up and down


def problem(runtime: Runtime, *, devices: int = 16) -> Problem:
    return problem_of(MODEL, cluster_of(devices, node=8), runtime=runtime, seq_len=512)


def meshes(runtime: Runtime, *, devices: int = 16, shard: int = 0) -> MeshTable:
    return mesh_table(
        problem(runtime, devices=devices), rows_of([Grid(dp=devices)]), np.array([shard or devices])
    )


def synced(runtime: Runtime, **sizes: int) -> SyncTable:
    return meshes(runtime, **sizes).sync


def moved(kind: Collective, volume: float, *, devices: int = 16) -> float:
    """Seconds of one collective over all devices."""
    network = network_of(problem(LAYERS, devices=devices).cluster)
    span = span_of(
        network.tiers,
        axes_of("dp-cp", rows_of([Grid(dp=devices)])),
        in_network_reduction=network.in_network_reduction,
    )
    return float(move_seconds(kind, volume=np.array([volume]), span=span, network=network)[0])


def test_matrices_of_a_block_are_counted_without_vectors_and_with_all_experts_as_one() -> None:
    assert trained_matrices(MODEL.blocks[LAYER].operators, experts=False) == DENSE
    sparse = next(
        b
        for b in expert_model(dense=1, sparse=3, experts=8).blocks
        if any(o.experts for o in b.operators)
    )
    assert trained_matrices(sparse.operators, experts=True) == 3
    assert trained_matrices((), experts=True) == 1


def test_a_layer_is_one_collective_where_nothing_else_is_said() -> None:
    sync = synced(LAYERS)
    assert (
        sync.fetch[LAYER, 0]
        == sync.gather[LAYER, 0]
        == pytest.approx(moved(Collective.ALL_GATHER, 2.0 * sync.dense[LAYER, 0]))
    )
    assert sync.scatter[LAYER, 0] == sync.reduce[LAYER, 0]
    assert not sync.parts.any()
    assert not sync.apart.any()


def test_broadcasts_return_parameters_of_zero_1_and_do_not_gather_those_of_zero_3() -> None:
    plainly, broadcast = (
        synced(LAYERS),
        synced(replace(LAYERS, name="broadcasts", zero1_broadcasts=True)),
    )
    assert (broadcast.fetch == plainly.fetch).all()
    assert (broadcast.gather[LAYER] > plainly.gather[LAYER]).all()


def test_matrices_are_joined_up_to_the_bucket() -> None:
    volume = 2.0 * synced(LAYERS).dense[LAYER, 0]

    def fetch(bucket: int) -> float:
        return float(synced(replace(LAYERS, name="b", gather_bucket_bytes=bucket)).fetch[LAYER, 0])

    # Smaller than a matrix: each alone. Between a matrix and a layer: whole buckets. Larger than a
    # layer: its part of the bucket.
    assert fetch(1) == pytest.approx(DENSE * moved(Collective.ALL_GATHER, volume / DENSE))
    assert fetch(round(volume / 2)) == pytest.approx(2 * moved(Collective.ALL_GATHER, volume / 2))
    assert fetch(round(4 * volume)) == pytest.approx(moved(Collective.ALL_GATHER, 4 * volume) / 4)
    assert fetch(1) > fetch(round(volume / 2)) > fetch(round(4 * volume))
    joined = synced(replace(LAYERS, name="b", gather_bucket_bytes=MIB))
    assert (joined.gather == synced(LAYERS).gather).all()
    assert (joined.scatter == synced(LAYERS).scatter).all()


def test_lists_cost_the_host_operators_for_each_member_of_each_matrix() -> None:
    plainly, listed = meshes(LAYERS), meshes(LISTS)
    tensors = DENSE * 16
    elements = float(listed.sync.dense[LAYER, 0])
    assert listed.sync.parts[LAYER, 0] == tensors
    waited = listed.gather_copy_s[LAYER, 0] - plainly.gather_copy_s[LAYER, 0]
    assert waited == pytest.approx(tensors * LISTED_GATHER_OPERATORS * OPERATOR_S)
    assert listed.sync.fetch[LAYER, 0] == pytest.approx(
        DENSE * moved(Collective.ALL_GATHER, 2 * elements / DENSE)
    )
    summed = DENSE * moved(Collective.REDUCE_SCATTER, 4 * elements / DENSE)
    assert listed.sync.scatter[LAYER, 0] == pytest.approx(
        summed + tensors * LISTED_REDUCE_OPERATORS * OPERATOR_S
    )
    # Twice the members, twice the tensors: what made ZeRO-3 of 2021 scale badly.
    assert synced(LISTS, devices=32).parts[LAYER, 0] == 2 * tensors
    assert synced(LISTS, devices=16, shard=8).parts[LAYER, 0] == tensors / 2


@pytest.mark.parametrize(("zero", "longer"), [(1, False), (2, False), (3, True)])
def test_pieces_are_zero_3s_alone(zero: int, longer: bool) -> None:
    def step(runtime: Runtime) -> float:
        return simulate_grid(problem(runtime, devices=64), Grid(dp=64, zero=zero)).step_time_s

    assert (step(replace(LAYERS, name="b", gather_bucket_bytes=1)) > step(LAYERS)) is longer
    assert (step(LISTS) > step(LAYERS)) is longer


def test_what_lies_further_apart_than_the_reuse_distance_is_gathered_again() -> None:
    again = python_form(gathers_again)
    assert again(1e9, 0.0) == again(1e9, 2e9) == again(0.0, 1e9) == 1.0
    assert again(1e9, 1e9) == 1.5
    assert again(1e9, 1.0) == pytest.approx(2.0)

    def exposed(reuse: int, recompute: Recompute) -> float:
        # Many devices and few tokens: communication is what a layer waits for.
        made = problem(replace(LAYERS, name=f"r{reuse}", reuse_elements=reuse), devices=64)
        grid = Grid(dp=64, zero=3, recompute=recompute)
        return float(
            step_costs(made, grid, price_grid(made, grid)).parts[1, :, SHARDING_PART].sum()
        )

    assert exposed(1, Recompute.FULL) > exposed(0, Recompute.FULL)
    assert exposed(1, Recompute.NONE) == exposed(0, Recompute.NONE)


@pytest.mark.parametrize(("shard", "apart"), [(8, True), (4, False), (16, False), (32, False)])
def test_sums_over_replicas_run_apart_where_no_tier_has_members_of_both_groups(
    shard: int, apart: bool
) -> None:
    # 32 devices on nodes of 8. Groups of 4: two replicas of a piece share a node; groups of 16
    # cross nodes as their replicas do.
    sync = synced(replace(LAYERS, name="apart", sums_replicas_apart=True), devices=32, shard=shard)
    assert bool(sync.apart[LAYER, 0] > 0.0) is apart
    assert sync.apart[LAYER, 0] < sync.reduce[LAYER, 0]


def test_a_step_of_hybrid_sharding_is_shorter_where_its_replicas_sum_apart() -> None:
    def step(apart: bool) -> float:
        runtime = replace(LAYERS, name=f"apart-{apart}", sums_replicas_apart=apart)
        return simulate_grid(problem(runtime, devices=32), Grid(dp=32, zero=3, shard=8)).step_time_s

    assert step(True) < step(False)


def test_deepspeeds_releases_gather_as_their_code_does() -> None:
    listed, joined = load_runtime("deepspeed-2021"), load_runtime("deepspeed")
    assert (listed.listed_collectives, listed.gather_bucket_bytes) == (True, 0)
    assert (joined.listed_collectives, joined.gather_bucket_bytes) == (False, 100_000_000)
    assert listed.reuse_elements == joined.reuse_elements == 10**9
