"""The device with the busiest experts: its products, its traffic and its memory, and nothing
else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.errors import UsageError
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.program.block.block_program import BlockProgram, KernelKind, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.simulator.predict_plan import predict
from shardwright.strategy.text.grid_notation import parse_grid
from tests.search.problems import real_problem

DEGREES = {
    name: np.array([1]) for name in ("mbs", "tp", "ring", "ulysses", "etp", "cp", "positions")
} | {"ep": np.array([8])}
PROBLEM = real_problem("mixtral-8x7b", "h100-sxm:8", seq_len=4096, global_batch=8)


def lowered(imbalance: float) -> BlockProgram:
    problem = replace(PROBLEM, job=replace(PROBLEM.job, expert_imbalance=imbalance))
    (block,) = (b for b in problem.model.blocks if any(o.experts for o in b.operators))
    return lower_block(
        block, Structure(sequence_parallel=False, routed=True), block_context(problem, block)
    )


def test_what_grows_with_it_by_hand() -> None:
    even, uneven = lowered(1.0), lowered(1.25)
    routed = {o.name for o in even.operators if is_routed(o)}
    for one, other in zip(even.works, uneven.works, strict=True):
        if one.kernel is KernelKind.GROUPED_GEMM:
            assert one.m is not None
            assert other.m is not None
            assert (int(evaluate(one.m, DEGREES)[0]), int(evaluate(other.m, DEGREES)[0])) == (
                4096 * 2,
                5120 * 2,
            )
        elif one.operator not in routed:
            assert one == other
    for one_move, other_move in zip(even.moves, uneven.moves, strict=True):
        first, second = (
            sum(int(evaluate(size, DEGREES)[0]) for size in move.volume)
            for move in (one_move, other_move)
        )
        assert second == (first * 5 // 4 if one_move.axes[0] in ("ep", "etp") else first)
    kept = [
        {s.tensor: int(evaluate(s.volume, DEGREES)[0]) for s in program.saved}
        for program in (even, uneven)
    ]
    grown = {name for name, size in kept[0].items() if kept[1][name] != size}
    assert {name: size * 5 // 4 for name, size in kept[0].items() if name in grown} == {
        name: kept[1][name] for name in grown
    }
    assert grown
    assert all(any(name.startswith(operator) for operator in routed) for name in grown)
    assert even.stored == uneven.stored
    assert {w.phase for w in even.works} == {Phase.F, Phase.I, Phase.W}


def test_a_step_and_its_memory_grow_with_it() -> None:
    grid = parse_grid("ep8 dp8 mbs1 zero1 recompute=none")
    found = [
        predict(replace(PROBLEM, job=replace(PROBLEM.job, expert_imbalance=x)), grid)
        for x in (1.0, 1.2, 1.5, 2.0)
    ]
    seconds, memory = [f.step_time_s for f in found], [f.allocated_bytes for f in found]
    assert seconds == sorted(set(seconds))
    assert memory == sorted(set(memory))


@pytest.mark.parametrize("wrong", [0.99, 1001.0, float("nan"), "2"])
def test_numbers_that_are_none(wrong: object) -> None:
    with pytest.raises(UsageError, match="expert-imbalance"):
        job_from_flags(seq_len=8, global_batch=1, expert_imbalance=wrong)  # type: ignore[arg-type]
