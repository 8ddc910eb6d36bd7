"""Moves of a segment's blocks in which one device takes part: group, bytes and repetition."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem
from shardwright.cost.step.price_one_stage_device_family import recompute_mode
from shardwright.cost.tables.plan_block_costs import local_sizes
from shardwright.cost.tables.share_of_block_work_rerun_by_selective_recompute import repeats_move
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.block import Block
from shardwright.program.block.block_program import Move
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import on_replica
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.training_problem import Problem
from shardwright.strategy.plan.stage_splits_and_policies import Keep


class SegmentMove(NamedTuple):
    """A move of one of a segment's blocks.

    Args:
        group: its devices.
        volume: its bytes.
        repeated: True if a recompute runs it again in backward.
    """

    move: Move
    group: DeviceList
    volume: float
    repeated: bool


def segment_moves(
    problem: Problem,
    stage: StageParts,
    segment: Segment,
    *,
    device: int,
    lengths: tuple[int, ...] | None,
) -> tuple[SegmentMove, ...]:
    """The moves of a block of a segment in which a device takes part.

    Equal chunks of the device have equal moves, which are made once.

    Args:
        problem: of the device's kind.
        lengths: tokens of the slices up to the current one; None = sequences are whole.
    """
    return _moves_on_device(
        Same(problem),
        Same(segment.block),
        Same(segment.cells),
        segment.keeps,
        stage.base,
        device - stage.base,
        lengths,
    )


@lru_cache(maxsize=64)
def _moves_on_device(
    problem: Same[Problem],
    block: Same[Block],
    cells: Same[StageCells],
    keeps: tuple[Keep, ...],
    base: int,
    local: int,
    lengths: tuple[int, ...] | None,
) -> tuple[SegmentMove, ...]:
    """The moves of a block on device `local` of a stage that begins at device `base` (cached)."""
    context = block_context(block_problem(problem.value, block.value), block.value)
    if lengths is not None:
        context = replace(context, tokens=lengths[-1], before=lengths[:-1])
    structure, first_device = on_replica(
        cells.value,
        local,
        length=context.tokens,
        island=problem.value.cluster.tiers()[0].num_devices,
    )
    program, degrees = lower_block(block.value, structure, context), local_sizes(structure)
    mode, runs_again = (recompute_mode(keeps), repeats_move(program, problem.value.runtime))
    return tuple(
        [
            SegmentMove(
                move=move,
                group=DeviceList.of([d + first_device + base for d in move.group]),
                volume=float(sum(int(evaluate(size, degrees)[0]) for size in move.volume)),
                repeated=mode == 2 or (mode == 1 and runs_again(move)),
            )
            for move in program.moves
        ]
    )
