"""Proofs whose short sequences go beyond windows and chunks of scans, as the long ones of their
plans do."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.proof.proof_result import PlanProof
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.execute.proof.short_windows import ShortReach, reach_of, with_short_windows
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid
from tests.tiers import chosen

LONG = 4096
WINDOWED: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": LONG,
    "rms_norm_eps": 1e-6,
}
SCANNED: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_size": 128,
    "num_heads": 8,
    "head_dim": 32,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 256,
    "conv_kernel": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "layer_norm_epsilon": 1e-5,
    "hidden_act": "silu",
}
GRIDS = ("tp2 sp1 cp2 mbs1", "cp4 mbs1 zero3", "cp2 ulysses2 mbs1")


def windowed(window: int | None) -> Model:
    return model_from_config({**WINDOWED, "sliding_window": window}, name="windowed")


def proven(model: Model, grid: str) -> PlanProof:
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LONG),), global_batch=2)
    return prove_plan(
        model, job, plan_of(parse_grid(grid), model=model, global_batch=job.global_batch)
    )


@pytest.mark.parametrize("grid", chosen(GRIDS, (GRIDS[0], GRIDS[2])))
def test_a_window_binds_where_the_long_sequence_goes_beyond_it(grid: str) -> None:
    bound, loose, none = (proven(windowed(window), grid) for window in (1000, LONG, None))
    assert bound.equal
    assert loose.equal
    (tokens,) = bound.tokens.values()
    assert {
        o.attention.window
        for b in bound.model.blocks
        for o in b.operators
        if o.attention is not None
    } == {3 * tokens // 8}
    assert bound.loss != pytest.approx(none.loss, rel=1e-9)
    assert loose.loss == pytest.approx(none.loss, rel=1e-12)


@pytest.mark.parametrize("grid", ["tp2 sp1 mbs1", "cp2 mbs1"])
def test_a_scan_crosses_its_chunks(grid: str) -> None:
    found = proven(model_from_config(SCANNED, name="scanned"), grid)
    assert found.equal
    (tokens,) = found.tokens.values()
    assert {
        o.scan.chunk for b in found.model.blocks for o in b.operators if o.scan is not None
    } == {3 * tokens // 8}


def test_what_keeps_nothing_out_stays() -> None:
    model = windowed(1000)
    assert with_short_windows(model, {"text": reach_of(8, whole=1000)}) == model
    assert with_short_windows(model, {"image": ShortReach(window=3, chunk=3)}) == model
    (shape,) = {
        o.attention
        for b in with_short_windows(model, {"text": reach_of(16, whole=1001)}).blocks
        for o in b.operators
        if o.attention
    }
    assert shape.window == 6
