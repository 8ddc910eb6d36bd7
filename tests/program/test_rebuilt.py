"""Modules under checkpoints of their own: what they free and repeat, counted by hand."""

from __future__ import annotations

import pytest

from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.block import Block
from shardwright.program.block.operators_rerun_by_runtime_recompute_modules import (
    is_dropped,
    recomputed_operators,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.units import GIB
from tests.search.problems import real_problem

GRID = "tp2 sp dp4 mbs1 zero1 recompute=none"


def block(model: str, name: str) -> Block:
    return next(b for b in load_model(model).blocks if b.name == name)


@pytest.mark.parametrize(
    ("option", "of", "dropped", "again"),
    [
        ("recompute_norms", "dense", "norm1 norm2", "norm1 norm2"),
        ("recompute_mla", "dense", "q_up kv_up rotary", "q_up kv_up rotary"),
        ("recompute_mlp", "dense", "up act", "up act down"),
        ("recompute_mlp", "moe", "", ""),
        ("recompute_moe_act", "moe", "experts.act", "experts.act"),
        ("recompute_shared", "moe", "shared.up shared.act", "shared.up shared.act shared.down"),
        (
            "recompute_moe",
            "moe",
            "router route permute experts.up experts.act experts.down",
            "router route permute experts.up experts.act experts.down unpermute",
        ),
    ],
)
def test_operators_of_a_module(option: str, of: str, dropped: str, again: str) -> None:
    found = recomputed_operators(
        block("deepseek-v3", of).operators, load_runtime(f"megatron-bridge {option}=on")
    )
    assert found.dropped == {*dropped.split()}
    assert found.again == {*again.split()}


def test_tensors_beside_an_output_go_with_it() -> None:
    names = frozenset({"q_up", "act"})
    assert all(
        is_dropped(name, names)
        for name in ("q_up", "q_up.1", "act.gate", "q_up.1.quantised", "act.quantised")
    )
    assert not any(is_dropped(name, names) for name in ("up", "q_upper", "core.lse", "experts.act"))


def held(words: str) -> tuple[float, int]:
    """Seconds a step, and bytes of activations of the only stage."""
    problem = real_problem(
        "llama-3.2-1b", "h100-sxm:8", seq_len=2048, global_batch=16, runtime="megatron-core-0.12"
    )
    found = predict(problem, parse_grid(f"{GRID} {words}"))
    (stage,) = found.stages
    return found.step_time_s, dict(stage.items)["activations"]


def test_a_feed_forward_frees_what_is_inside() -> None:
    """16 layers of 2,048 tokens on two tensor-parallel ranks keep 2 x 8,192 / 2 outputs of the up
    projection and 8,192 / 2 of the activation, of 2 bytes; their forward runs again, 3 x 2 x 2,048
    x 8,192 FLOPs a token of 12 (4 microbatches) x 4,096 x 8,192 ...
    """
    (plain, before), (slower, after) = held(""), held("recompute_mlp=on")
    assert before - after == 16 * 2048 * (2 * 8192 // 2 + 8192 // 2) * 2
    products = 16 * 4 * 2048 * 3 * 2 * 2048 * 8192 / 2
    assert products / 989e12 < slower - plain < 3 * products / 989e12


def test_norms_free_their_outputs() -> None:
    """Two of 2,048 values of 2 bytes a token and layer, on two sequence-parallel ranks."""
    (plain, before), (slower, after) = held(""), held("recompute_norms=on")
    assert before - after == 2 * 16 * 2048 * 2048 * 2 // 2
    assert 0 < slower - plain < 0.02 * plain


def test_a_layer_recomputed_whole_rebuilds_nothing_more() -> None:
    grid = GRID.replace("none", "full")
    problem = real_problem(
        "llama-3.2-1b", "h100-sxm:8", seq_len=2048, global_batch=16, runtime="megatron-core-0.12"
    )
    times = [
        predict(problem, parse_grid(f"{grid} {words}")).step_time_s
        for words in ("", "recompute_mlp=on recompute_norms=on")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_experts_free_gigabytes() -> None:
    """Of DeepSeek-V3 on 256 H100; each module frees memory and takes time, routed experts most of
    both."""
    problem = real_problem(
        "deepseek-v3", "h100-sxm:256", seq_len=4096, global_batch=256, runtime="megatron-bridge"
    )
    found = {
        words: predict(
            problem, parse_grid(f"pp8 ep32 dp32 mbs1 zero1 recompute=none schedule=1f1b {words}")
        )
        for words in (
            "",
            "recompute_moe_act=on",
            "recompute_shared=on",
            "recompute_mla=on",
            "recompute_moe=on",
        )
    }
    plain = found.pop("")
    assert all(
        p.step_time_s > plain.step_time_s and p.allocated_bytes < plain.allocated_bytes - GIB
        for p in found.values()
    )
    assert min(found.values(), key=lambda p: p.allocated_bytes) is found["recompute_moe=on"]
    assert max(found.values(), key=lambda p: p.step_time_s) is found["recompute_moe=on"]
