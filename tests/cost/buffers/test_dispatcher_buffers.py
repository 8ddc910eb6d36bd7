"""What dispatchers and pairs of microbatches take of memory, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.bounds.rank_memory_bound import paired_activations
from shardwright.cost.buffers.dispatcher_buffers import deep_ep_bytes, hybrid_ep_bytes
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import StageMemory
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.units import MIB
from tests.search.problems import real_problem


def stages(device: str, devices: int, options: str, grid: str) -> tuple[StageMemory, ...]:
    problem = real_problem(
        "deepseek-v3",
        f"{device}:{devices}",
        seq_len=4096,
        global_batch=8 * devices,
        runtime=f"megatron-bridge {options}",
    )
    return tuple(predict(problem, parse_grid(f"{grid} mbs1 zero1 recompute=none")).stages)


def item(found: tuple[StageMemory, ...], name: str) -> list[int]:
    return [dict(stage.items)[name] for stage in found]


@pytest.mark.parametrize(
    ("members", "near", "far"),
    [
        (4, 4 * 256, 0),
        (8, 8 * 256, 0),
        (16, 8 * 288, 2),
        (64, 8 * 288, 8),
        (96, 8 * 480, 12),
        (160, 8 * 720, 20),
    ],
)
def test_buffers_of_deep_ep(members: int, near: int, far: int) -> None:
    """10 channels; a slot of a token of 7,168: 14,336 bytes and 2,056 beside it; for each node 128
    tokens each way, of 16 bytes more."""
    slot = 7168 * 2 + 2056
    (found,) = deep_ep_bytes(np.array([members]), hidden=7168)
    assert found == 10 * near * slot + (2 * 10 * far * 128 * (slot + 16) + MIB if far else 0)


def test_buffers_of_hybrid_ep() -> None:
    """A domain of 72 holds 64 devices' 4,096 tokens of 7,168 in 16 bits with 256 weights in 32; two
    domains of 32 twice that, with half the weights, and three times the other's tokens of one
    device.
    """
    tokens, members = np.array([4096]), np.array([64])
    assert hybrid_ep_bytes(
        members, tokens=tokens, hidden=7168, experts=256, island=72
    ).tolist() == [64 * 4096 * (7168 * 2 + 256 * 4)]
    each = 4096 * (7168 * 2 + 128 * 4)
    assert hybrid_ep_bytes(
        members, tokens=tokens, hidden=7168, experts=256, island=32
    ).tolist() == [2 * 64 * each + 3 * each]


def test_dispatchers_take_what_their_libraries_ask_for() -> None:
    grid = "tp1 pp4 ep64 dp64 vpp2"
    for device, held in (
        ("gb200", 64 * 4096 * (7168 * 2 + 256 * 5)),
        ("h100-sxm", int(deep_ep_bytes(np.array([64]), hidden=7168)[0])),
    ):
        copies, once = (
            item(stages(device, 256, f"dispatcher={name}", grid), "communication")
            for name in ("alltoall", "flex")
        )
        assert [b - a for a, b in zip(copies, once, strict=True)] == [held] * 4


def test_hybrid_ep_takes_its_own_buffers_in_small_islands_too() -> None:
    made = (
        stages("h100-sxm", 256, f"dispatcher={name}", "tp1 pp4 ep64 dp64 vpp2")
        for name in ("alltoall", "hybridep")
    )
    copies, hybrid = (item(found, "communication") for found in made)
    held = int(
        hybrid_ep_bytes(
            np.array([64]), tokens=np.array([4096]), hidden=7168, experts=256, island=8
        )[0]
    )
    told = 64 * 4096 * 256  # the map of where all tokens go
    assert [b - a for a, b in zip(copies, hybrid, strict=True)] == [held + told] * 4


def test_gathered_tokens_lie_in_one_buffer() -> None:
    """8 devices' 4,096 tokens of 7,168 in 16 bits, for all layers."""
    grid = "tp1 pp8 ep8 dp8 vpp2"
    copies, gathered = (
        item(stages("h100-sxm", 64, f"dispatcher={name}", grid), "workspace")
        for name in ("alltoall", "allgather")
    )
    assert [b - a for a, b in zip(copies, gathered, strict=True)] == [8 * 4096 * 7168 * 2] * 8


def test_a_pair_keeps_a_chunk_more_in_a_pipeline_and_a_layer_without() -> None:
    saved, paired = np.array([70, 90]), np.array([0, 30])
    assert paired_activations(saved, paired, pipelined=True) == 90
    assert paired_activations(saved, paired, pipelined=False) == 30
    assert paired_activations(saved, np.zeros_like(saved), pipelined=True) == 0


def test_expert_overlap_takes_memory() -> None:
    """A rank keeps two chunks of a microbatch less than the rank before it; a pair one more."""
    grid = "tp1 pp4 ep64 dp64 vpp2"
    alone, paired = (
        item(stages("gb200", 256, f"dispatcher=flex expert_overlap={value}", grid), "activations")
        for value in ("off", "on")
    )
    assert 2 * (paired[2] - alone[2]) == alone[2] - alone[3] > 0
