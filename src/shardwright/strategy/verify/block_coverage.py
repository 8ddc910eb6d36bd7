"""Blocks that each stage of a lane runs, and the rule that each block runs exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from shardwright.errors import nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import Operator
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.stage_splits_and_policies import Item
from shardwright.strategy.rule_violations import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPiece:
    """Consecutive blocks of one run of the model, as one item of a stage.

    They are blocks `first` .. `first + count - 1`.

    Args:
        run: index into `Model.runs`.
        operator: name of the only operator that is run; empty = the whole blocks.
        counted: the blocks count in the stage's block ranges (blocks given by name alone do not,
            nor a teacher's).
    """

    run: int
    first: int
    count: int
    operator: str = ""
    counted: bool = False


StagePieces: TypeAlias = tuple[tuple[BlockPiece, ...], ...]
"""Pieces of every stage of a lane."""


def operators_of(piece: BlockPiece, *, model: Model) -> tuple[Operator, ...]:
    """Operators of one block of a piece, or only the one operator that the piece names."""
    operators = model.blocks[model.runs[piece.run].block].operators
    return tuple(o for o in operators if o.name == piece.operator) if piece.operator else operators


@dataclass(slots=True)
class _TakenBlocks:
    """Number of blocks of each run of the model that earlier stages took."""

    model: Model
    blocks: list[int]
    layers: list[int]

    def take(self, run: int, count: int, *, counted: bool) -> BlockPiece | None:
        """Take a run's next `count` blocks, `counted` in block ranges; None if fewer are left."""
        first = self.blocks[run]
        if first + count > self.model.runs[run].count:
            return None
        self.blocks[run] += count
        return BlockPiece(run=run, first=first, count=count, counted=counted)

    def take_layers(self, count: int) -> list[BlockPiece] | None:
        """Take the next `count` layers from one or more runs, in order; None if fewer are left."""
        pieces: list[BlockPiece] = []
        for run in self.layers:
            num_taken = min(count, self.model.runs[run].count - self.blocks[run])
            piece = self.take(run, num_taken, counted=True) if num_taken else None
            if piece:
                pieces.append(piece)
                count -= num_taken
        return pieces if count == 0 else None


def _find(name: str, runs: tuple[Run, ...]) -> tuple[int, str] | None:
    """Resolve ``run`` or ``run.operator`` to (run index, operator name); None if unknown."""
    for i, run in enumerate(runs):
        if name == run.name:
            return i, ""
    for i, run in enumerate(runs):
        if name.startswith(f"{run.name}."):
            return i, name[len(run.name) + 1 :]
    return None


def stage_pieces(lane: Lane, *, model: Model) -> tuple[StagePieces, tuple[Violation, ...]]:
    """(pieces of each stage, violations): assign a model's blocks to a lane's stages in order.

    The violations are of ``stage.item`` and ``stage.coverage``.
    """
    named = {run.name for run in layer_runs(model)}
    taken = _TakenBlocks(
        model=model,
        blocks=[0] * len(model.runs),
        layers=[i for i, run in enumerate(model.runs) if run.name in named],
    )
    stages: list[tuple[BlockPiece, ...]] = []
    broken: list[Violation] = []
    for chunk, stage in enumerate(lane.stages):
        pieces: list[BlockPiece] = []
        for item in stage.items:
            item_pieces = _resolve(item, taken, path=f"lane {lane.name} / stage {chunk}")
            if isinstance(item_pieces, Violation):
                broken.append(item_pieces)
            else:
                pieces += item_pieces
        stages.append(tuple(pieces))
    return tuple(stages), tuple(broken)


def _resolve(item: Item, taken: _TakenBlocks, *, path: str) -> list[BlockPiece] | Violation:
    """Take the blocks or the operator that an item names; a Violation if it cannot."""
    runs = taken.model.runs
    if not item.name:
        layers = taken.take_layers(item.count)
        if layers is None:
            return Violation(
                rule="stage.coverage",
                message=f"{item.count} more layers than the model has left",
                path=path,
            )
        return layers
    run_and_operator = _find(item.name, runs)
    if run_and_operator is None:
        hint = nearest(item.name, [run.name for run in runs])
        return Violation(
            rule="stage.item", message=f"the model has no block {item.name!r}", hint=hint, path=path
        )
    run, operator = run_and_operator
    if operator:
        names = [o.name for o in taken.model.blocks[runs[run].block].operators]
        if operator not in names or runs[run].count != 1 or item.count:
            hint = (
                nearest(operator, names)
                if runs[run].count == 1
                else "only a block that does not repeat can be cut between operators"
            )
            return Violation(
                rule="stage.item",
                message=f"no operator {item.name!r} can stand alone",
                hint=hint,
                path=path,
            )
        return [BlockPiece(run=run, first=0, count=1, operator=operator)]
    if not item.count and runs[run].count > 1:
        hint = f"write {item.name}:{runs[run].count}, or a count alone"
        return Violation(
            rule="stage.item",
            message=f"{item.name!r} is {runs[run].count} blocks",
            hint=hint,
            path=path,
        )
    counted = bool(item.count) and taken.model.blocks[runs[run].block].is_layer
    piece = taken.take(run, item.count or 1, counted=counted)
    if piece is None:
        return Violation(
            rule="stage.coverage",
            message=f"{item.name!r} has no {item.count or 1} more blocks",
            path=path,
        )
    return [piece]


def coverage(lane: Lane, pieces: StagePieces, *, model: Model) -> Iterator[Violation]:
    """Check that a lane runs every block of the model exactly once, and none before its inputs.

    The rules are ``stage.coverage`` and ``stage.topology``.
    """
    blocks_of_run: dict[int, int] = {}
    operators_of_run: dict[int, list[str]] = {}
    first_place: dict[int, int] = {}
    last_place: dict[int, int] = {}
    for place, piece in enumerate(p for chunk in pieces for p in chunk):
        first_place.setdefault(piece.run, place)
        last_place[piece.run] = place
        if piece.operator:
            operators_of_run.setdefault(piece.run, []).append(piece.operator)
        else:
            blocks_of_run[piece.run] = blocks_of_run.get(piece.run, 0) + piece.count
    path = f"lane {lane.name}"
    for i, run in enumerate(model.runs):
        expected = [] if i in blocks_of_run else [o.name for o in model.blocks[run.block].operators]
        if blocks_of_run.get(i, 0) != (
            0 if i in operators_of_run and i not in blocks_of_run else run.count
        ) or sorted(operators_of_run.get(i, [])) != sorted(
            expected if i in operators_of_run else []
        ):
            covered = f"{blocks_of_run.get(i, 0)} of {run.count} blocks" + (
                f" and operators {', '.join(operators_of_run[i])}" if i in operators_of_run else ""
            )
            yield Violation(
                rule="stage.coverage",
                message=f"{run.name}: {covered} are in the stages",
                hint="every block, or every operator of a cut block, exactly once in each lane",
                path=path,
            )
        elif i in operators_of_run and operators_of_run[i] != expected:
            yield Violation(
                rule="stage.topology",
                message=f"{run.name}: operators in order {', '.join(operators_of_run[i])}",
                hint=", ".join(expected),
                path=path,
            )
    position = {run.name: i for i, run in enumerate(model.runs)}
    for i, run in enumerate(model.runs):
        for name in run.inputs:
            j = position[name]
            if i in first_place and j in last_place and last_place[j] > first_place[i]:
                yield Violation(
                    rule="stage.topology",
                    message=f"{run.name} comes before {name}, which it reads",
                    hint="stages are numbered from input to output",
                    path=path,
                )
