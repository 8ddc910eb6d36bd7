"""Saved activations of one layer: the formulas of Korthikanti et al. 2022 (arXiv 2205.05198),
tables and equations 1-6, in bytes.

Letters are the paper's: s tokens, b samples, h hidden, a heads, t tensor parallel degree; two bytes
an element.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.blocks.dense_blocks import decoder_block, embedding_block, head_block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape
from shardwright.program.block.block_program import Recomputable
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import AttentionKernel
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.jobs import training_job
from tests.program.structures import structure_of

S, B, A, HEAD = 1024, 2, 16, 64
H = A * HEAD
SBH = S * B * H
UNFUSED = load_runtime("megatron-2022")
FLASH = replace(UNFUSED, name="megatron-2022-flash", attention_kernel=AttentionKernel.FLASH_2)
NONE, SELECTIVE, FULL = range(3)


def gpt_layer_model(
    *, gated: bool = False, kv_heads: int = A, ffn: int = 4 * H, rotary: bool = False
) -> Model:
    shape = AttentionShape(heads=A, kv_heads=kv_heads, head_dim=HEAD, value_dim=HEAD)
    bias = not gated
    blocks = (
        embedding_block(hidden=H, vocab=1000),
        decoder_block(
            "layer",
            hidden=H,
            attention=shape,
            ffn=ffn,
            gated=gated,
            norm_bias=bias,
            attention_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
            rotary=rotary,
        ),
        head_block(hidden=H, vocab=1000, tied=True),
    )
    runs = (
        Run(name="embed", block=0, count=1),
        Run(name="layers", block=1, count=2, inputs=("embed",)),
        Run(name="head", block=2, count=1, inputs=("layers",)),
    )
    return Model(name="gpt", architecture="Gpt", blocks=blocks, runs=runs, hidden=H, vocab=1000)


def saved(
    model: Model,
    *,
    mode: int,
    runtime: Runtime = UNFUSED,
    dropout: bool = True,
    **degrees: int | bool,
) -> int:
    """Bytes that one microbatch keeps of one layer: from the block table, and the same again from
    the lowered block."""
    grid = Grid(microbatch=B, **degrees)  # type: ignore[arg-type]
    job = replace(training_job(seq_len=S, global_batch=8 * B), dropout=dropout)
    problem = Problem(
        model=model, cluster=parse_cluster("a100-sxm-80gb:8"), job=job, runtime=runtime
    )
    rows = rows_of([grid])
    (block,) = [i for i, b in enumerate(model.blocks) if b.name == "layer"]
    from_table = int(layer_table(problem, rows).saved_bytes[block, mode, 0])
    program = programs_of(problem, structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp))[block]
    dropped = ((), (Recomputable.SELECTIVE,), (Recomputable.SELECTIVE, Recomputable.FULL))[mode]
    from_block = sum(
        int(evaluate(x.volume, rows.degrees())[0])
        for x in program.saved
        if x.dropped not in dropped
    )
    assert from_table == from_block
    return from_table


def test_without_parallelism() -> None:
    # Equation 1: sbh (34 + 5 a s / h).
    assert saved(gpt_layer_model(), mode=NONE) == 34 * SBH + 5 * A * S * S * B


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallel(t: int) -> None:
    # Equation 2: sbh (10 + 24 / t + 5 a s / (h t)).
    assert (
        saved(gpt_layer_model(), mode=NONE, tp=t)
        == 10 * SBH + 24 * SBH // t + 5 * A * S * S * B // t
    )


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_and_sequence_parallel(t: int) -> None:
    # Equation 4: sbh / t (34 + 5 a s / h).
    assert saved(gpt_layer_model(), mode=NONE, tp=t, sp=True) == (34 * SBH + 5 * A * S * S * B) // t


@pytest.mark.parametrize("t", [1, 2, 8])
def test_selective_recompute(t: int) -> None:
    # Equation 6: 34 sbh / t; table 2 without sequence parallelism: sbh (10 + 24 / t).
    assert saved(gpt_layer_model(), mode=SELECTIVE, tp=t, sp=t > 1) == 34 * SBH // t
    assert saved(gpt_layer_model(), mode=SELECTIVE, tp=t) == 10 * SBH + 24 * SBH // t


@pytest.mark.parametrize("t", [1, 2, 8])
def test_full_recompute(t: int) -> None:
    # Table 2: 2 sbh. With sequence parallelism the stream is cut, so what is kept at a layer's
    # border is 2 sbh / t; the paper's table gives 2 sbh for full recompute only, without saying
    # what sequence parallelism makes of it.
    assert saved(gpt_layer_model(), mode=FULL, tp=t) == 2 * SBH
    assert saved(gpt_layer_model(), mode=FULL, tp=t, sp=t > 1) == 2 * SBH // t


@pytest.mark.parametrize(("t", "sp"), [(1, False), (4, True)])
def test_flash_attention_keeps_one_float_a_head_and_token_instead_of_scores(
    t: int, sp: bool
) -> None:
    # Dao et al. 2022 (arXiv 2205.14135), section 3.1: the statistics of the softmax, here one fp32
    # log-sum-exp. Selective recompute of the core drops it.
    assert (
        saved(gpt_layer_model(), mode=NONE, runtime=FLASH, tp=t, sp=sp)
        == (34 * SBH + 4 * A * S * B) // t
    )
    assert saved(gpt_layer_model(), mode=SELECTIVE, runtime=FLASH, tp=t, sp=sp) == 34 * SBH // t


@pytest.mark.parametrize(("t", "sp"), [(1, False), (4, True)])
def test_without_dropout_no_masks(t: int, sp: bool) -> None:
    # Two masks of the stream (sbh each) and, of the scores, mask (1 byte) and output of the dropout
    # (2) go: 32 sbh and 2 a s^2 b stay.
    assert (
        saved(gpt_layer_model(), mode=NONE, dropout=False, tp=t, sp=sp)
        == (32 * SBH + 2 * A * S * S * B) // t
    )
    assert (
        saved(gpt_layer_model(), mode=NONE, dropout=False, runtime=FLASH, tp=t, sp=sp)
        == (32 * SBH + 4 * A * S * B) // t
    )


@pytest.mark.parametrize(("kv", "t", "copies"), [(16, 1, 1), (4, 1, 1), (4, 4, 1), (2, 8, 4)])
def test_gated_layer_with_grouped_queries(kv: int, t: int, copies: int) -> None:
    # Elements of h a token, two bytes each: norm1 in, qkv in, q + k + v, core out, norm2 in, up in,
    # gate and up (act in), act out. With fewer key heads than t, each key head is on `copies`
    # devices.
    f = 3 * H
    elements = 1 + 1 + (1 + 2 * copies * kv / A) + 1 + 1 + 1 + 2 * f / H + f / H
    model = gpt_layer_model(gated=True, kv_heads=kv, ffn=f, rotary=True)
    expected = 2 * elements * SBH / t + 4 * A * S * B / t
    # The stream's five tensors are cut with the others: norm1 in, qkv in, norm2 in and up in are
    # the stream's, by sequence parallelism.
    got = saved(model, mode=NONE, runtime=FLASH, dropout=False, tp=t, sp=t > 1)
    assert got == expected


def test_llama_3_70b_per_layer() -> None:
    # 8192 wide, 64 heads, 8 key heads, f = 28672 = 3.5 h: 2 + 2 + 2 (1 + 2/8) + 2 + 2 + 2 + 4 x 3.5
    # + 2 x 3.5 = 33.5 bytes a token and h.
    shape = AttentionShape(heads=64, kv_heads=8, head_dim=128, value_dim=128)
    layer = decoder_block("layer", hidden=8192, attention=shape, ffn=28672, gated=True)
    model = gpt_layer_model()
    model = replace(
        model,
        name="llama",
        hidden=8192,
        blocks=(embedding_block(hidden=8192, vocab=1000), layer, model.blocks[2]),
    )
    assert (
        saved(model, mode=NONE, runtime=FLASH, dropout=False)
        == int(33.5 * S * B * 8192) + 4 * 64 * S * B
    )


def test_samples_and_context_parallelism_scale_linearly() -> None:
    whole = saved(gpt_layer_model(), mode=NONE, runtime=FLASH)
    assert saved(gpt_layer_model(), mode=NONE, runtime=FLASH, cp=4) * 4 == whole
    assert saved(gpt_layer_model(), mode=NONE, runtime=FLASH, cp=4, ulysses=4) * 4 == whole
