"""Activations in host memory: bytes that leave the device, and seconds that a layer waits for their
copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.buffers.activation_offload_bytes_and_waits import waited_for_host
from shardwright.cost.part_phase_recompute_keys import MODES, PHASES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.strategies import dense_model

LAYER, SELECTIVE = 1, MODES.index("selective")
AGAIN = PHASES.index("R_selective")


def problem(remat: str, *, host: float = 1.0) -> Problem:
    """A small model under a policy; `host`: factor on the rate to host memory."""
    cluster = cluster_of(2, node=2)
    node = cluster.groups[0].kind
    pcie = replace(node.host.pcie, bandwidth=node.host.pcie.bandwidth * host)
    slower = replace(
        cluster,
        groups=(
            replace(cluster.groups[0], kind=replace(node, host=replace(node.host, pcie=pcie))),
        ),
    )
    return problem_of(
        dense_model(), slower, runtime=load_runtime(f"maxtext remat={remat}"), seq_len=256
    )


def table(remat: str, *, host: float = 1.0) -> LayerTable:
    return layer_table(problem(remat, host=host), rows_of([Grid(dp=2)]))


def kept(remat: str) -> int:
    return int(table(remat).saved_bytes[LAYER, SELECTIVE, 0])


def test_bytes_of_each_policy_counted_by_hand() -> None:
    model = problem("full").model
    shape = next(o.attention for b in model.blocks for o in b.operators if o.attention is not None)
    width = sum(e.size for o in model.blocks[LAYER].operators if o.name == "up" for e in o.writes)
    stream = 256 * model.hidden * 2
    qkv = 256 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim * 2
    core = 256 * shape.heads * (shape.value_dim * 2 + 4)
    assert kept("save_qkv_proj") == stream + qkv
    assert kept("save_out_proj") == 2 * stream
    assert kept("save_dot_except_mlp") == 2 * stream + qkv
    # The product behind the activation is named, and read by nobody.
    assert kept("save_dot_except_mlpwi") == 2 * stream + qkv
    assert kept("minimal") == 2 * stream + qkv + 256 * width * 2
    assert kept("minimal_with_context") == kept("minimal") + core
    assert kept("qkv_proj_offloaded") == stream
    assert kept("minimal_offloaded") == stream
    assert kept("attention_offloaded") == 0


def test_a_policy_that_keeps_more_runs_less_again() -> None:
    order = (
        "save_out_proj",
        "save_qkv_proj",
        "save_dot_except_mlp",
        "minimal",
        "minimal_with_context",
    )
    spent = [float(table(name).seconds[LAYER, AGAIN].sum()) for name in order]
    full = float(table("full").seconds[LAYER, PHASES.index("R_full")].sum())
    assert full > max(spent[:2]) > spent[2] > spent[3] > spent[4] > 0


def test_a_fast_link_hides_all_copies_and_a_slow_one_is_waited_for() -> None:
    on_device, on_host = (
        table("save_dot_except_mlp", host=1e6),
        table("attention_offloaded", host=1e6),
    )
    assert float(on_host.seconds[LAYER, AGAIN].sum()) == float(
        on_device.seconds[LAYER, AGAIN].sum()
    )
    slow = table("attention_offloaded", host=1e-6)
    moved = kept("save_dot_except_mlp")
    rate = problem("full", host=1e-6).cluster.node.host.pcie.achieved
    both = 2 * moved / rate - sum(
        float(on_device.seconds[LAYER, PHASES.index(p)].sum())
        for p in ("F", "I", "W", "R_selective")
    )
    assert float(
        slow.seconds[LAYER, AGAIN].sum() - on_device.seconds[LAYER, AGAIN].sum()
    ) == pytest.approx(both, rel=1e-9)


def test_waits_stretch_with_time() -> None:
    seconds = np.arange(24, dtype=float).reshape(4, 2, 3) / 100
    volume = np.array([0, 7, 90])
    one, other = (waited_for_host(volume, rate=10.0 / f, seconds=seconds * f) for f in (1.0, 3.0))
    assert one[0] == 0
    assert np.allclose(other, 3 * one)


def checkpointed(options: str, *, tp: int = 1) -> LayerTable:
    """A small model under DeepSpeed's checkpoints."""
    parked = problem_of(
        dense_model(),
        cluster_of(2, node=2),
        runtime=load_runtime(f"deepspeed {options}"),
        seq_len=256,
    )
    return layer_table(parked, rows_of([Grid(tp=tp, dp=2 // tp)]))


@pytest.mark.parametrize("tp", [1, 2])
def test_inputs_of_recomputed_layers_wait_in_host_memory(tp: int) -> None:
    """Nothing is left of them on the device, and each member copies its own part down and up,
    beside nothing."""
    full, again = MODES.index("full"), PHASES.index("R_full")
    kept, parked = checkpointed("", tp=tp), checkpointed("cpu_checkpoints=on", tp=tp)
    assert (parked.saved_bytes[LAYER, full] == 0).all()
    assert np.array_equal(
        np.delete(parked.saved_bytes[LAYER], full, axis=0),
        np.delete(kept.saved_bytes[LAYER], full, axis=0),
    )
    rate = problem("full").cluster.node.host.pcie.achieved
    waited = float((parked.seconds - kept.seconds)[LAYER, again].sum())
    assert waited == pytest.approx(2 * int(kept.saved_bytes[LAYER, full, 0]) / tp / rate, rel=1e-9)


def test_shards_of_parameters_wait_in_host_memory() -> None:
    """Less by a shard's working copy on the device, and longer by its copies."""
    names = ("deepspeed", "deepspeed param_offload=on")
    made = [
        problem_of(dense_model(), cluster_of(2, node=2), runtime=load_runtime(name), seq_len=256)
        for name in names
    ]
    kept, moved = (predict(one, parse_grid("dp2 mbs1 zero3 recompute=none")) for one in made)
    shard = made[0].model.num_parameters * 2 // 2
    assert kept.allocated_bytes - moved.allocated_bytes == pytest.approx(shard, rel=1e-3)
    assert moved.step_time_s > kept.step_time_s
