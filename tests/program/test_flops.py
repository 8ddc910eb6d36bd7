"""FLOPs of GEMMs: the whole model's forward is 2 x active weights x tokens, as integers, however it
is cut; backward is twice that."""

from __future__ import annotations

import random

import pytest

from shardwright.cost.bounds.longest_path import microbatches_of
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.step.model_flops import model_flops
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.block.block_program import KernelKind, Phase
from shardwright.program.stages.blocks_of_pipeline_chunks import chunk_contents
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.cost.prices import price_grid, rows_of
from tests.program.small import cluster_of, is_legal, problem_of
from tests.program.structures import structure_of
from tests.program.unfold import gemm_flops, program_of, unfold
from tests.strategies import dense_model, expert_model
from tests.torch_checks import ours

BATCH, SEQ = 32, 64
DENSE, SPARSE = dense_model(layers=6), expert_model(dense=2, sparse=4, experts=16)
GRIDS = (
    Grid(),
    Grid(tp=2),
    Grid(tp=8, sp=True),
    Grid(dp=8, microbatch=2),
    Grid(cp=4),
    Grid(cp=4, gather=True),
    Grid(cp=4, ulysses=4),
    Grid(tp=2, sp=True, cp=4, ulysses=2, dp=2, microbatch=4),
    Grid(pp=2, tp=4, sp=True),
    Grid(pp=3, dp=2, cp=2),
    Grid(pp=2, vpp=3, schedule="interleaved-1f1b", dp=4),
    Grid(pp=4, schedule="gpipe"),
)
EXPERT_GRIDS = (
    Grid(dp=8, ep=8),
    Grid(dp=8, ep=4, etp=2),
    Grid(tp=4, sp=True, dp=2, ep=8),
    Grid(tp=2, sp=True, cp=2, dp=4, ep=4, etp=4, pp=2),
)


def gemm_weights(model: Model) -> int:
    """Weights of linear operators that a token meets: experts count topk of them."""
    total = 0
    for run in model.runs:
        for operator in model.blocks[run.block].operators:
            size = sum(p.size for p in operator.parameters)
            if operator.kind is OperatorKind.GROUPED_LINEAR:
                assert operator.experts is not None
                size = size * operator.experts.topk // operator.experts.experts
            if operator.kind in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR):
                total += size * run.count
    return total


def cluster_flops(model: Model, grid: Grid, phase: Phase) -> int:
    """GEMM FLOPs of a step's phase summed over all devices, from the blocks of every chunk."""
    problem = problem_of(
        model, cluster_of(grid.devices, node=grid.devices), global_batch=BATCH, seq_len=SEQ
    )
    assert is_legal(problem, grid), grid
    programs = programs_of(problem, structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp))
    degrees = rows_of([grid]).degrees()
    one = [
        sum(
            gemm_flops(w, degrees)
            for w in p.works
            if w.phase is phase and w.kernel in (KernelKind.GEMM, KernelKind.GROUPED_GEMM)
        )
        for p in programs
    ]
    contents = chunk_contents(model, pp=grid.pp, vpp=grid.vpp)
    each = sum(count * one[block] for content in contents for block, count in content)
    return each * (grid.devices // grid.pp) * microbatches_of(problem, grid)


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_step_computes_each_weight_once_a_token(model: Model, grid: Grid) -> None:
    forward = 2 * gemm_weights(model) * BATCH * SEQ
    if model is SPARSE and grid.tp > 1 and not grid.sp:
        # Every member of a tp group scores all its tokens: 4 layers of 128 x 16 weights.
        forward += 2 * 4 * 128 * 16 * BATCH * SEQ * (grid.tp - 1)
    for phase in Phase:
        assert cluster_flops(model, grid, phase) == forward


@pytest.mark.parametrize("grid", EXPERT_GRIDS, ids=str)
def test_experts_compute_the_same_wherever_they_are(grid: Grid) -> None:
    forward = 2 * gemm_weights(SPARSE) * BATCH * SEQ
    for phase in Phase:
        assert cluster_flops(SPARSE, grid, phase) == forward


def test_fewer_key_heads_than_tp_are_computed_twice() -> None:
    """The copies are real work: tp 8 over 2 key heads projects keys and values 4 times."""
    model = dense_model(layers=6, kv_heads=2)
    once = 2 * gemm_weights(model) * BATCH * SEQ
    copies = 3 * 6 * 2 * 128 * (2 * 2 * 8) * BATCH * SEQ
    assert cluster_flops(model, Grid(tp=8, sp=True), Phase.F) == once + copies


def test_active_weights_are_those_of_the_model() -> None:
    for model in (DENSE, SPARSE):
        others = sum(
            sum(p.size for p in o.parameters) * run.count
            for run in model.runs
            for o in model.blocks[run.block].operators
            if o.kind not in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
        )
        assert gemm_weights(model) + others == model.num_active_parameters


@pytest.mark.parametrize("tp", [1, 2])
def test_keys_of_cross_attention_come_from_the_memory(tp: int) -> None:
    """Projected and kept for every position of the encoder, whatever the decoder's length."""
    problem = ours.problem_for(ours.T5, runtime=ours.FUSED)
    program, degrees = ours.lowered(problem, "decoder", Grid(tp=tp, sp=tp > 1))
    width = 2 * 8 * 12 // tp
    for phase in Phase:
        assert (
            ours.matmul_flops(program, degrees, phase)["cross.kv"]
            == 2 * ours.ENCODER_TOKENS * 64 * width
        )
    kept = ours.kept(program, degrees)
    assert kept["cross.kv"] + kept["cross.kv.1"] == 2 * ours.ENCODER_TOKENS * width
    assert kept["cross.q"] == 2 * ours.TOKENS * width // 2
    causal, full = model_flops(problem)
    forward = sum(
        sum(
            ours.matmul_flops(
                *ours.lowered(problem, problem.model.blocks[run.block].name, Grid()), Phase.F
            ).values()
        )
        * run.count
        for run in problem.model.runs
    )
    assert full == 3 * forward * problem.job.global_batch > causal


@pytest.mark.parametrize(("groups", "tp", "local"), [(8, 1, 8), (2, 1, 2), (2, 2, 1), (2, 4, 1)])
def test_scores_of_a_scan_are_one_product_a_group(groups: int, tp: int, local: int) -> None:
    """With fewer groups than parts every part has one: tokens x chunk x (groups x state + heads x
    width) + states."""
    config = {**ours.MAMBA, "n_groups": groups}
    program, degrees = ours.lowered(
        ours.problem_for(config, runtime=ours.FUSED), "mamba", Grid(tp=tp)
    )
    heads, width, state, chunk = 8 // tp, 16, 24, 8
    expected = (
        2 * ours.TOKENS * (chunk * (local * state + heads * width) + 2 * heads * state * width)
    )
    assert ours.matmul_flops(program, degrees, Phase.F)["scan"] == expected


@pytest.mark.parametrize(
    "grid", [*GRIDS, Grid(pp=2, tp=2, recompute=Recompute.FULL, recompute_layers=1)], ids=str
)
def test_bound_row_program_and_every_rank_agree(grid: Grid) -> None:
    """The integer of the table's row is that of the operator tasks that the ranks run."""
    problem = problem_of(
        DENSE, cluster_of(grid.devices, node=grid.devices), global_batch=BATCH, seq_len=SEQ
    )
    priced = price_grid(problem, grid)
    costs = step_costs(problem, grid, priced)
    program = program_of(problem, grid)
    degrees = rows_of([grid]).degrees()
    devices = (
        random.Random(0).sample(range(grid.devices), min(grid.devices, 2))
        if grid.pp == 1
        else range(grid.devices)
    )
    seen = [
        sum(
            t.flops
            for t in unfold(program, rank, degrees)
            if t.phase is Phase.F and not t.recomputed
        )
        for rank in devices
    ]
    forward = 2 * gemm_weights(DENSE) * BATCH * SEQ
    assert sum(seen) * grid.devices == forward * len(seen)
    causal, _ = model_flops(problem)
    attention = causal - 3 * forward
    # The row's FLOPs are of one microbatch on one device of each rank, attention under the mask
    # included.
    each = costs.flops * microbatches_of(problem, grid) * (grid.devices // grid.pp)
    assert each == pytest.approx(forward + attention / 3, rel=1e-12)
