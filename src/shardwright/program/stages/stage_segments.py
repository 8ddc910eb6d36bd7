"""Stages of a general plan resolved against the model: blocks, devices and cells."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList, union
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.tensors_without_gradient import computes_input_gradient, without_gradient
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import (
    StageCells,
    class_trees,
    leaves,
    stage_cells,
)
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import num_leaves
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Keep, Placement, Stage
from shardwright.strategy.verify.block_coverage import BlockPiece, stage_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive equal blocks of a stage, under the same cells and keep lines.

    Args:
        run: run of the model.
        first, count: its blocks.
        block: operators of each block (one of them where a cut lies inside a block).
        operator: name of that operator, or empty.
    """

    block: Block
    run: int
    first: int
    count: int
    cells: StageCells
    keeps: tuple[Keep, ...] = ()
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """One stage of a plan: its segments, and its devices as the cluster numbers them.

    Args:
        devices: sorted.
        families: devices that are lowered as one, each sorted; the first one stands for them.
        samples: samples of one microbatch.
    """

    lane: int
    chunk: int
    base: int
    segments: tuple[Segment, ...]
    devices: DeviceList
    families: tuple[DeviceList, ...]
    samples: int


@lru_cache(maxsize=8)
def working_devices(stages: Same[tuple[tuple[StageParts, ...], ...]]) -> DeviceList:
    """Devices that belong to some stage, by number; all others are idle."""
    return union([stage.devices for lane in stages.value for stage in lane])


def plan_stages(
    plan: Plan, *, model: Model, unfolded: bool = False
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages of every lane of a plan, resolved against the model.

    Args:
        unfolded: every device is a family of its own.

    Raises:
        StrategyError: a stage does not resolve (see `strategy.verify.block_coverage`), or has a
            feature that lowering leaves out (rules ``lower.*``).
    """
    stages_of_lanes = []
    resolved: dict[Hashable, StageCells] = {}
    for number, lane in enumerate(plan.lanes):
        pieces, violations = stage_pieces(lane, model=model)
        if violations:
            raise StrategyError(
                violations[0].message,
                hint=violations[0].hint,
                rule=violations[0].rule,
                path=violations[0].path,
            )
        if not lane.microbatches:
            raise StrategyError(
                f"lane {lane.name} trains nothing",
                hint="only training lanes are lowered",
                rule="lower.role",
                path=f"lane {lane.name}",
            )
        placements_by_id = {id(stage.placements): stage.placements for stage in lane.stages}
        overridden = {
            key
            for key, placements in placements_by_id.items()
            if len({(num_leaves(p.split), p.offset) for p in placements}) > 1
        }
        ranged = {
            key
            for key, placements in placements_by_id.items()
            if any(p.select.blocks is not None for p in placements)
        }
        stages_of_lanes.append(
            tuple(
                _stage(
                    stage,
                    parts,
                    lane=lane,
                    number=number,
                    chunk=chunk,
                    model=model,
                    unfolded=unfolded,
                    cells_of_block=resolved,
                    ranged=id(stage.placements) in ranged,
                    overridden=id(stage.placements) in overridden,
                )
                for chunk, (stage, parts) in enumerate(zip(lane.stages, pieces, strict=True))
            )
        )
    return tuple(stages_of_lanes)


def _stage(
    stage: Stage,
    pieces: tuple[BlockPiece, ...],
    *,
    lane: Lane,
    number: int,
    chunk: int,
    model: Model,
    unfolded: bool,
    cells_of_block: dict[Hashable, StageCells],
    ranged: bool,
    overridden: bool,
) -> StageParts:
    """Stage number `chunk` of lane number `number`, resolved against the model.

    Args:
        ranged: some trees are of some blocks only.
        overridden: some tree may have devices that no other has.
    """
    if stage.every != 1:
        raise StrategyError(
            f"stage {chunk} runs once for {stage.every} microbatches",
            hint="run the stage once for each microbatch of the lane",
            rule="lower.every",
            path=f"lane {lane.name} / stage {chunk}",
        )
    samples = lane.samples // lane.microbatches
    segments: list[Segment] = []
    blocks_before = 0
    for piece in pieces:
        block = model.blocks[model.runs[piece.run].block]
        if piece.operator:
            block = single_operator(block, piece.operator)
        for block_number in range(piece.count):
            number_in_chunk = blocks_before if piece.counted else None
            key = (id(stage.placements), number_in_chunk if ranged else None, samples)
            if key not in cells_of_block:
                cells_of_block[key] = _block_cells(stage.placements, key[1], samples, unfolded)
            cells = cells_of_block[key]
            keeps_here = number_in_chunk is not None and [
                k for k in stage.keeps if k.blocks[0] <= number_in_chunk <= k.blocks[1]
            ]
            keeps = tuple([replace(k, blocks=(0, 0)) for k in keeps_here]) if keeps_here else ()
            blocks_before += piece.counted
            last_segment = segments[-1] if segments else None
            if (
                last_segment
                and last_segment.block is block
                and last_segment.cells is cells
                and last_segment.keeps == keeps
                and last_segment.run == piece.run
            ):
                segments[-1] = replace(last_segment, count=last_segment.count + 1)
            else:
                segments.append(
                    Segment(
                        block=block,
                        run=piece.run,
                        first=piece.first + block_number,
                        count=1,
                        cells=cells,
                        keeps=keeps,
                        operator=piece.operator,
                    )
                )
    families, devices = _families(
        tuple(dict.fromkeys([s.cells for s in segments])),
        stage.base,
        stage.placements if overridden else (),
        unfolded,
    )
    return StageParts(
        lane=number,
        chunk=chunk,
        base=stage.base,
        segments=tuple(segments),
        devices=devices,
        families=families,
        samples=samples,
    )


@lru_cache(maxsize=4096)
def _block_cells(
    placements: tuple[Placement, ...], block: int | None, samples: int, unfolded: bool
) -> StageCells:
    """Cells (each device's part of every cut dim) of a block, from its placement trees."""
    return stage_cells(class_trees(placements, block), samples=samples, unfolded=unfolded)


@lru_cache(maxsize=256)
def _families(
    cells: tuple[StageCells, ...],
    first_device: int,
    placements: tuple[Placement, ...],
    unfolded: bool,
) -> tuple[tuple[DeviceList, ...], DeviceList]:
    """(families of devices equal in all cells, all devices of a stage), idle devices included.

    The common refinement, as the cluster numbers devices.

    Args:
        placements: placements whose devices may have been overridden: they hold actions of the
            stage, but run nothing.
    """
    if len(cells) == 1 and not placements:
        shifted = tuple([family.shifted(first_device) for family in cells[0].families])
        return shifted, shifted[0] if len(shifted) == 1 else cells[0].devices.shifted(first_device)
    families: list[list[int]]
    if len(cells) == 1:
        families = [list(family) for family in cells[0].families]
    else:
        marks: dict[int, list[tuple[int, int]]] = {}
        for i, block_cells in enumerate(cells):
            for j, family in enumerate(block_cells.families):
                for device in family:
                    marks.setdefault(device, []).append((i, j))
        groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for device in sorted(marks):
            groups.setdefault(tuple(marks[device]), []).append(device)
        families = list(groups.values())
    running = {d for family in families for d in family} if placements else set()
    idle = sorted({d for p in placements for d, _, _ in leaves(p.split, p.offset)} - running)
    families += [[d] for d in idle] if unfolded else [idle] * bool(idle)
    shifted = tuple([DeviceList.of(family).shifted(first_device) for family in families])
    return shifted, shifted[0] if len(shifted) == 1 else union(shifted)


@lru_cache(maxsize=1024)
def single_operator(block: Block, name: str) -> Block:
    """Copy of `block` with operator `name` alone, which reads its inputs as the block's input.

    The operator reads the tensors that the stage before it made.
    """
    operator = next(o for o in block.operators if o.name == name)
    constant = () if computes_input_gradient(operator, without_gradient(block)) else (INPUT,)
    operator_alone = replace(
        operator,
        inputs=tuple(dict.fromkeys(INPUT for _ in operator.inputs)),
        keeps=tuple(dict.fromkeys(n if n == name else INPUT for n in operator.keeps)),
    )
    return replace(
        block, name=f"{block.name}.{name}", operators=(operator_alone,), constant=constant
    )
