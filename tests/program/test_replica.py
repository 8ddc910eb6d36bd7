"""Replicas: what a device exchanges inside its stage is found without the others, and equal
replicas are one object."""

from __future__ import annotations

from dataclasses import replace

from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure, on_replica
from shardwright.program.layout.stage_devices_that_share_samples import replica
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.simulator.simulate_plan import plan_of_grid
from tests.simulator.test_folding import drawn
from tests.tiers import in_both, many, random_of


@in_both
def test_blocks_are_lowered_alike_on_the_replica_and_on_the_whole_stage() -> None:
    draw = random_of(17)
    places = smaller = shared = 0
    for _ in range(many(10, 100)):
        problem, grid = drawn(draw)
        island = problem.cluster.tiers()[0].num_devices
        known: dict[int, set[int]] = {}
        for stage in plan_stages(plan_of_grid(problem, grid), model=problem.model)[0][:2]:
            for segment in stage.segments:
                context = block_context(problem, segment.block)
                for device in draw.sample(
                    segment.cells.devices, min(4, len(segment.cells.devices))
                ):
                    near, first = on_replica(
                        segment.cells, device, length=context.tokens, island=island
                    )
                    assert first % island == 0
                    assert near.device + first == device
                    found = lower_block(segment.block, near, context)
                    whole = CellStructure(
                        stage=segment.cells, device=device, length=context.tokens, island=island
                    )
                    moves = tuple(
                        replace(move, group=tuple(d + first for d in move.group))
                        for move in found.moves
                    )
                    assert replace(found, moves=moves) == lower_block(
                        segment.block, whole, context
                    ), (grid, device)
                    places += 1
                    smaller += len(near.stage.devices) < len(segment.cells.devices)
            for device in stage.segments[0].cells.devices:
                one = replica(stage.segments[0].cells, device, island)
                known.setdefault(id(one.cells), set()).add(one.first)
        shared += any(len(firsts) > 1 for firsts in known.values())
    assert smaller > places // 3
    assert shared >= many(2, 20)
