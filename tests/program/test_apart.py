"""GPT-OSS's clamps and biases of experts: kernels of their own, counted by hand; none where
something takes them in."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.kernels.launch_overhead import replayed
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.operator import OperatorClass
from shardwright.program.block.block_program import BlockProgram, KernelKind, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Capture
from shardwright.runtime.runtime_registry import load_runtime

TOKENS, TOPK, EXPERTS, WIDE, HIDDEN = 1024, 4, 32, 2880, 2880
ONES = {
    axis: np.ones(1, dtype=np.int64)
    for axis in ("mbs", "tp", "ring", "ulysses", "ep", "etp", "dp", "cp", "pp")
}
ROUTED = TOKENS * TOPK


def program(runtime: str, model: str = "gpt-oss-20b") -> BlockProgram:
    job = job_from_flags(seq_len=TOKENS, global_batch=1)
    problem = Problem(
        model=load_model(model),
        cluster=parse_cluster("h100:1"),
        job=job,
        runtime=load_runtime(runtime),
    )
    block = next(
        b
        for b in problem.model.blocks
        if b.name in ("moe", "layer") and any(o.experts for o in b.operators)
    )
    return lower_block(block, Structure(), block_context(problem, block))


def traffic(made: BlockProgram, operator: str, phase: Phase) -> list[tuple[int, int]]:
    """(bytes, launches) of an operator's element-wise kernels."""
    return [
        (
            sum(int(evaluate(s, ONES)[0]) for s in (*w.read, *w.written)),
            1 if w.groups is None else int(evaluate(w.groups, ONES)[0]),
        )
        for w in made.works
        if w.operator == operator and w.phase is phase and w.kernel is KernelKind.ELEMENT
    ]


def test_clamps_and_biases_are_counted() -> None:
    made = program("megatron-bridge")
    gate = ROUTED * WIDE
    assert traffic(made, "experts.act", Phase.F)[1:] == [(8 * gate, 1), (8 * gate, 1)]
    assert traffic(made, "experts.act", Phase.I)[1:] == [(12 * gate, 1), (8 * gate, 1)]
    down = ROUTED * HIDDEN
    forward, backward = (
        traffic(made, "experts.down", Phase.F),
        traffic(made, "experts.down", Phase.I),
    )
    assert sorted(forward) == sorted([(2 * down, EXPERTS), (6 * down, EXPERTS), (4 * down, 1)])
    late = [(4 * down, EXPERTS), (2 * down, EXPERTS)] * 2 + [(4 * down, 1)]
    assert all(backward.count(one) >= late.count(one) for one in late)
    assert all(moved[1] == 1 for moved in traffic(made, "experts.up", Phase.F))
    kept = {s.tensor: int(evaluate(s.volume, ONES)[0]) for s in made.saved}
    assert kept["experts.act.clamped"] == 2 * 2 * gate


@pytest.mark.parametrize(
    "runtime",
    ["megatron-bridge grouped_experts=fused", "torchtitan", "torchtitan-0.2 kernels=eager"],
)
def test_none_where_they_are_taken_in_or_all_is_eager(runtime: str) -> None:
    made = program(runtime)
    assert all(w.groups is None for w in made.works if w.kernel is KernelKind.ELEMENT)
    assert not any(s.tensor.endswith(".clamped") for s in made.saved)


def test_experts_without_clamp_and_bias_have_none() -> None:
    made = program("megatron-bridge", "mixtral-8x7b")
    assert all(w.groups is None for w in made.works if w.kernel is KernelKind.ELEMENT)


@pytest.mark.parametrize(
    ("capture", "classes"),
    [
        (Capture.NONE, ()),
        (Capture.ROUTER, (OperatorClass.ROUTER,)),
        (Capture.MAMBA, (OperatorClass.SSM,)),
        (
            Capture.ATTENTION,
            (OperatorClass.STREAM, OperatorClass.ATTN, OperatorClass.CORE, OperatorClass.SSM),
        ),
        (Capture.ITERATION, tuple(OperatorClass)),
    ],
)
def test_a_graph_replays_its_scope(capture: Capture, classes: tuple[OperatorClass, ...]) -> None:
    assert {
        klass for klass in OperatorClass if replayed(klass, routed=False, capture=capture)
    } == set(classes)
