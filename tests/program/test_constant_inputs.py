"""Lowered blocks of which nothing before, or nothing at all, is trained: no backward, nothing kept,
nothing sent back."""

from __future__ import annotations

from collections import defaultdict

import pytest

from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.ir.model_graph import Model
from shardwright.model.requested_model_with_teacher import requested_model
from shardwright.program.block.block_program import BlockProgram, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime

FROZEN_TOWER = requested_model("llava-1.5-7b", train="frozen:vision_embed,vision")
BESIDE = requested_model("llama-3.2-1b", teacher="llama-3.1-8b")
EXPERTS_TEACH = requested_model("qwen3-8b", teacher="qwen3-30b-a3b")
RUNTIMES = ("megatron-core", "torchtitan", "megatron-2022", "maxtext")


def lowered(model: Model, *, sp: bool, runtime: str = RUNTIMES[0]) -> dict[str, BlockProgram]:
    """The blocks of a model by run."""
    job = job_from_flags(seq_len=2048, global_batch=8, image_tokens=576)
    problem = Problem(
        model=model, cluster=parse_cluster("h100-sxm:8"), job=job, runtime=load_runtime(runtime)
    )
    blocks = {run.name: model.blocks[run.block] for run in model.runs}
    return {
        name: lower_block(b, Structure(sequence_parallel=sp), block_context(problem, b))
        for name, b in blocks.items()
    }


def phases(program: BlockProgram) -> dict[str, set[Phase]]:
    found: dict[str, set[Phase]] = defaultdict(set)
    for one in (*program.works, *program.moves):
        found[one.operator].add(one.phase)
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize(
    ("model", "frozen"),
    [
        (FROZEN_TOWER, {"vision_embed", "vision"}),
        (BESIDE, {"teacher_embed", "teacher_layers"}),
        (EXPERTS_TEACH, {"teacher_embed", "teacher_layers"}),
    ],
    ids=["tower", "teacher", "teacher of experts"],
)
def test_what_nothing_trained_lies_before_runs_forward_alone(
    model: Model, frozen: set[str], sp: bool, runtime: str
) -> None:
    for name, program in lowered(model, sp=sp, runtime=runtime).items():
        some = set().union(*phases(program).values())
        assert (some == {Phase.F}) is (name in frozen), name
        assert program.has_backward is (name not in frozen)
        if name in frozen:
            assert not program.saved


def test_the_first_trained_product_has_no_input_gradient() -> None:
    found = phases(lowered(FROZEN_TOWER, sp=True)["projector"])
    assert found["up"] == {Phase.F, Phase.W}
    assert found["act"] == {Phase.F, Phase.I}
    assert found["down"] == {Phase.F, Phase.I, Phase.W}


def test_the_head_beside_a_teacher_goes_back_through_the_model_alone() -> None:
    for sp in (False, True):
        program = lowered(BESIDE, sp=sp)["head"]
        found = phases(program)
        assert found["teacher.norm"] == found["teacher.logits"] == {Phase.F}
        assert found["logits"] == {Phase.F, Phase.I, Phase.W}
        assert found["loss"] == {Phase.F, Phase.I}
        assert not [saved.tensor for saved in program.saved if saved.tensor.startswith("teacher.")]
        (statistics,) = [move for move in program.moves if move.operator == "loss"]
        assert sum(volume.times for volume in statistics.volume) == 5 * 4


def test_the_models_own_blocks_are_those_without_a_teacher() -> None:
    alone, beside = lowered(requested_model("llama-3.2-1b"), sp=True), lowered(BESIDE, sp=True)
    assert beside["layers"] == alone["layers"]
    assert beside["embed"].works == alone["embed"].works
    assert beside["embed"].moves == alone["embed"].moves
