"""The stages of a general plan, resolved against the model: which blocks on which devices, under
which cells.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from shardwright.errors import StrategyError
from shardwright.hardware.device_list import DeviceList, union
from shardwright.lazy_dataclass import dataclass
from shardwright.model.gradients import asks_inputs, without_gradient
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.graph import Model
from shardwright.program.layout.cells import StageCells, class_trees, leaves, stage_cells
from shardwright.program.same import Same
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split import num_leaves
from shardwright.strategy.plan.stages import Keep, Placement, Stage
from shardwright.strategy.verify.coverage import Piece, stage_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Equal blocks of a stage in a row: under the same cells, kept in the same way.

    Args:
        run: of the model.
        first, count: its blocks.
        block: what each of them runs (one operator of it where a cut lies inside).
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
    """One stage: its segments, and its devices as the cluster numbers them.

    Args:
        devices: sorted.
        families: devices that are lowered as one, each sorted; the first one stands for them.
        samples: of one microbatch.
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
    """Devices that are in some stage, by number; all others are idle, wherever they lie."""
    return union([stage.devices for lane in stages.value for stage in lane])


def plan_stages(
    plan: Plan, *, model: Model, unfolded: bool = False
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages of every lane.

    Args:
        unfolded: every device is a family of its own.

    Raises:
        StrategyError: a stage does not resolve (see `strategy.verify.coverage`), or says what
        lowering leaves out (rules ``lower.*``).
    """
    result = []
    resolved: dict[Hashable, StageCells] = {}
    for number, lane in enumerate(plan.lanes):
        pieces, broken = stage_pieces(lane, model=model)
        if broken:
            raise StrategyError(
                broken[0].message, hint=broken[0].hint, rule=broken[0].rule, path=broken[0].path
            )
        if not lane.microbatches:
            raise StrategyError(
                f"lane {lane.name} trains nothing",
                hint="only training lanes are lowered",
                rule="lower.role",
                path=f"lane {lane.name}",
            )
        known = {id(stage.placements): stage.placements for stage in lane.stages}
        overridden = {
            key
            for key, placements in known.items()
            if len({(num_leaves(p.split), p.offset) for p in placements}) > 1
        }
        ranged = {
            key
            for key, placements in known.items()
            if any(p.select.blocks is not None for p in placements)
        }
        result.append(
            tuple(
                _stage(
                    stage,
                    parts,
                    lane=lane,
                    number=number,
                    chunk=chunk,
                    model=model,
                    unfolded=unfolded,
                    known=resolved,
                    ranged=id(stage.placements) in ranged,
                    overridden=id(stage.placements) in overridden,
                )
                for chunk, (stage, parts) in enumerate(zip(lane.stages, pieces, strict=True))
            )
        )
    return tuple(result)


def _stage(
    stage: Stage,
    pieces: tuple[Piece, ...],
    *,
    lane: Lane,
    number: int,
    chunk: int,
    model: Model,
    unfolded: bool,
    known: dict[Hashable, StageCells],
    ranged: bool,
    overridden: bool,
) -> StageParts:
    """One stage; `ranged`: some trees are of some blocks only; `overridden`: some tree may have
    devices that no other has.
    """
    if stage.every != 1:
        raise StrategyError(
            f"stage {chunk} runs once for {stage.every} microbatches",
            hint="give it a lane's microbatches one by one",
            rule="lower.every",
            path=f"lane {lane.name} / stage {chunk}",
        )
    samples = lane.samples // lane.microbatches
    segments: list[Segment] = []
    counted = 0
    for piece in pieces:
        block = model.blocks[model.runs[piece.run].block]
        if piece.operator:
            block = single_operator(block, piece.operator)
        for place in range(piece.count):
            number_in_chunk = counted if piece.counted else None
            key = (id(stage.placements), number_in_chunk if ranged else None, samples)
            if key not in known:
                known[key] = _block_cells(stage.placements, key[1], samples, unfolded)
            cells = known[key]
            here = number_in_chunk is not None and [
                k for k in stage.keeps if k.blocks[0] <= number_in_chunk <= k.blocks[1]
            ]
            keeps = tuple([replace(k, blocks=(0, 0)) for k in here]) if here else ()
            counted += piece.counted
            last = segments[-1] if segments else None
            if (
                last
                and last.block is block
                and last.cells is cells
                and last.keeps == keeps
                and last.run == piece.run
            ):
                segments[-1] = replace(last, count=last.count + 1)
            else:
                segments.append(
                    Segment(
                        block=block,
                        run=piece.run,
                        first=piece.first + place,
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
    """The cells of block number `block` of a chunk."""
    return stage_cells(class_trees(placements, block), samples=samples, unfolded=unfolded)


@lru_cache(maxsize=256)
def _families(
    cells: tuple[StageCells, ...], base: int, placements: tuple[Placement, ...], unfolded: bool
) -> tuple[tuple[DeviceList, ...], DeviceList]:
    """Devices that are of one family in all cells (the common refinement), and all devices, as the
    cluster numbers them.

    Args:
        placements: those whose devices may have been overridden: they take part in the stage's
            actions, but run nothing.
    """
    if len(cells) == 1 and not placements:
        shifted = tuple([family.shifted(base) for family in cells[0].families])
        return shifted, shifted[0] if len(shifted) == 1 else cells[0].devices.shifted(base)
    families: list[list[int]]
    if len(cells) == 1:
        families = [list(family) for family in cells[0].families]
    else:
        marks: dict[int, list[tuple[int, int]]] = {}
        for i, one in enumerate(cells):
            for j, family in enumerate(one.families):
                for device in family:
                    marks.setdefault(device, []).append((i, j))
        groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for device in sorted(marks):
            groups.setdefault(tuple(marks[device]), []).append(device)
        families = list(groups.values())
    known = {d for family in families for d in family} if placements else set()
    idle = sorted({d for p in placements for d, _, _ in leaves(p.split, p.offset)} - known)
    families += [[d] for d in idle] if unfolded else [idle] * bool(idle)
    shifted = tuple([DeviceList.of(family).shifted(base) for family in families])
    return shifted, shifted[0] if len(shifted) == 1 else union(shifted)


@lru_cache(maxsize=1024)
def single_operator(block: Block, name: str) -> Block:
    """A block of one operator of `block`, which reads what the stage before it made."""
    operator = next(o for o in block.operators if o.name == name)
    constant = () if asks_inputs(operator, without_gradient(block)) else (INPUT,)
    alone = replace(
        operator,
        inputs=tuple(dict.fromkeys(INPUT for _ in operator.inputs)),
        keeps=tuple(dict.fromkeys(n if n == name else INPUT for n in operator.keeps)),
    )
    return replace(block, name=f"{block.name}.{name}", operators=(alone,), constant=constant)
