"""Ranges of a model's blocks in which no stage and no split tree of a plan begins or ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Placement, Stage
from shardwright.strategy.verify.block_coverage import BlockPiece, stage_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBlocks:
    """Blocks of a run, or one operator, inside which no stage and no split tree begins or ends.

    The blocks are `first` .. `first + count` of the run.

    Args:
        owners: by lane, its chunk and the numbers of the stage's placements that rule an operator
            here.
    """

    run: int
    first: int
    count: int
    operator: str
    owners: tuple[tuple[int, tuple[int, ...]], ...]


def block_ranges(plan: Plan, *, model: Model) -> tuple[ColumnBlocks, ...]:
    """The model's block ranges between stage and tree boundaries; of operators in cut blocks.

    Raises:
        StrategyError: a stage's items are not in the model, or a lane leaves blocks out or takes
        them twice.
    """
    taken = [_taken(lane, model=model) for lane in plan.lanes]
    result: list[ColumnBlocks] = []
    for number, run in enumerate(model.runs):
        operators = model.blocks[run.block].operators
        is_cut = any(piece.operator for lane in taken for _, _, piece in lane.get(number, ()))
        if is_cut:
            spans = [(0, 1, operator.name) for operator in operators]
        else:
            edges = sorted(
                {
                    0,
                    run.count,
                    *(
                        edge
                        for lane in taken
                        for stage, n, p in lane.get(number, ())
                        for edge in _range_edges(stage, n, p)
                    ),
                }
            )
            spans = [(a, b - a, "") for a, b in pairwise(edges)]
        for first, count, name in spans:
            classes = frozenset(o.klass.value for o in operators if name in ("", o.name))
            owners = tuple(
                _owner_in_lane(
                    lane,
                    taken_here.get(number, []),
                    first=first,
                    operator=name,
                    classes=classes,
                    where=f"{run.name} {first}",
                )
                for lane, taken_here in zip(plan.lanes, taken, strict=True)
            )
            result.append(
                ColumnBlocks(run=number, first=first, count=count, operator=name, owners=owners)
            )
    return tuple(result)


_Taken = tuple["_Chunk", int, BlockPiece]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A stage and its number in the lane."""

    number: int
    stage: Stage


def _taken(lane: Lane, *, model: Model) -> Mapping[int, list[_Taken]]:
    """Run number -> (chunk, chunk's blocks before the piece, piece) of each piece of a lane."""
    pieces, broken = stage_pieces(lane, model=model)
    if broken:
        raise StrategyError(
            broken[0].message, hint=broken[0].hint, rule=broken[0].rule, path=broken[0].path
        )
    result: dict[int, list[_Taken]] = {}
    for number, stage in enumerate(lane.stages):
        counted = 0
        for piece in pieces[number]:
            result.setdefault(piece.run, []).append(
                (_Chunk(number=number, stage=stage), counted, piece)
            )
            counted += piece.count if piece.counted else 0
    for several in result.values():
        several.sort(key=lambda entry: entry[2].first)
    return result


def _range_edges(chunk: _Chunk, counted: int, piece: BlockPiece) -> Iterator[int]:
    """Yield block indices in a run where a piece, or a placement's range in it, begins or ends."""
    yield piece.first
    yield piece.first + piece.count
    for placement in chunk.stage.placements:
        if piece.counted and placement.select.blocks:
            first, last = placement.select.blocks
            yield from (
                piece.first + at - counted
                for at in (first, last + 1)
                if 0 < at - counted < piece.count
            )


def _owner_in_lane(
    lane: Lane,
    taken: list[_Taken],
    *,
    first: int,
    operator: str,
    classes: frozenset[str],
    where: str,
) -> tuple[int, tuple[int, ...]]:
    """(stage number, placement numbers) of a lane for blocks from `first`; raise if not one."""
    if operator:
        owners = [t for t in taken if t[2].operator in ("", operator)]
    else:
        place = bisect_left(taken, first + 1, key=lambda entry: entry[2].first)
        owners = [t for t in taken[max(0, place - 1) : place] if first < t[2].first + t[2].count]
    if len(owners) != 1:
        raise StrategyError(
            f"{where} {operator}".strip() + f" is in {len(owners)} stages",
            hint="every block exactly once in each lane",
            rule="stage.coverage",
            path=f"lane {lane.name}",
        )
    chunk, counted, piece = owners[0]
    block = counted + first - piece.first if piece.counted else -1
    return chunk.number, tuple(
        sorted(
            {
                _last_matching_placement(chunk.stage.placements, klass, block=block, lane=lane)
                for klass in classes
            }
        )
    )


def _last_matching_placement(
    placements: tuple[Placement, ...], operator_class: str, *, block: int, lane: Lane
) -> int:
    """Index of the last matching placement, or raise; `block`: in its stage, -1 if not counted.

    Args:
        block: the layer's number; -1 = a block without one, such as the embedding.

    Raises:
        StrategyError: no placement selects the class.
    """
    for number in range(len(placements) - 1, -1, -1):
        select = placements[number].select
        inside = select.blocks is None or (
            block >= 0 and select.blocks[0] <= block <= select.blocks[1]
        )
        if inside and (not select.classes or operator_class in select.classes):
            return number
    raise StrategyError(
        f"no placement says where {operator_class} operators run",
        hint="begin with a line 'all = ..'",
        rule="placement.missing",
        path=f"lane {lane.name}",
    )
