"""Which blocks and operators of a model each stage of a lane runs."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model, Run
from shardwright.model.ir.operator import Operator
from shardwright.strategy.grid.facts import layer_runs
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.stages import Item
from shardwright.strategy.violation import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Blocks `first` .. `first + count` of run `run`, as one item of a stage.

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


def operators_of(piece: Piece, *, model: Model) -> tuple[Operator, ...]:
    """The operators of one of its blocks."""
    operators = model.blocks[model.runs[piece.run].block].operators
    return tuple(o for o in operators if o.name == piece.operator) if piece.operator else operators


@dataclass(slots=True)
class _Taken:
    """Blocks of each run that earlier items took, in order."""

    model: Model
    blocks: list[int]
    layers: list[int]

    def next(self, run: int, count: int, *, counted: bool) -> Piece | None:
        """The next `count` blocks of a run; None if it has not so many left."""
        first = self.blocks[run]
        if first + count > self.model.runs[run].count:
            return None
        self.blocks[run] += count
        return Piece(run=run, first=first, count=count, counted=counted)

    def layer(self, count: int) -> list[Piece] | None:
        """The next `count` layers, whatever runs they are in;
        None if there are not so many left.
        """
        pieces: list[Piece] = []
        for run in self.layers:
            here = min(count, self.model.runs[run].count - self.blocks[run])
            piece = self.next(run, here, counted=True) if here else None
            if piece:
                pieces.append(piece)
                count -= here
        return pieces if count == 0 else None


def _find(name: str, runs: tuple[Run, ...]) -> tuple[int, str] | None:
    """(run, operator) of a name: a run's, or a run's and an operator's with a dot between."""
    for i, run in enumerate(runs):
        if name == run.name:
            return i, ""
    for i, run in enumerate(runs):
        if name.startswith(f"{run.name}."):
            return i, name[len(run.name) + 1 :]
    return None


def stage_pieces(
    lane: Lane, *, model: Model
) -> tuple[tuple[tuple[Piece, ...], ...], tuple[Violation, ...]]:
    """(pieces of every stage, broken rules ``stage.item`` and ``stage.coverage``
    met on the way).
    """
    named = {run.name for run in layer_runs(model)}
    taken = _Taken(
        model=model,
        blocks=[0] * len(model.runs),
        layers=[i for i, run in enumerate(model.runs) if run.name in named],
    )
    result: list[tuple[Piece, ...]] = []
    broken: list[Violation] = []
    for chunk, stage in enumerate(lane.stages):
        pieces: list[Piece] = []
        for item in stage.items:
            found = _resolve(item, taken, path=f"lane {lane.name} / stage {chunk}")
            if isinstance(found, Violation):
                broken.append(found)
            else:
                pieces += found
        result.append(tuple(pieces))
    return tuple(result), tuple(broken)


def _resolve(item: Item, taken: _Taken, *, path: str) -> list[Piece] | Violation:
    """The blocks or the operator that an item means."""
    runs = taken.model.runs
    if not item.name:
        layers = taken.layer(item.count)
        if layers is None:
            return Violation(
                rule="stage.coverage",
                message=f"{item.count} more layers than the model has left",
                path=path,
            )
        return layers
    found = _find(item.name, runs)
    if found is None:
        hint = nearest(item.name, [run.name for run in runs])
        return Violation(
            rule="stage.item", message=f"the model has no block {item.name!r}", hint=hint, path=path
        )
    run, operator = found
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
        return [Piece(run=run, first=0, count=1, operator=operator)]
    if not item.count and runs[run].count > 1:
        hint = f"write {item.name}:{runs[run].count}, or a count alone"
        return Violation(
            rule="stage.item",
            message=f"{item.name!r} is {runs[run].count} blocks",
            hint=hint,
            path=path,
        )
    counted = bool(item.count) and taken.model.blocks[runs[run].block].is_layer
    piece = taken.next(run, item.count or 1, counted=counted)
    if piece is None:
        return Violation(
            rule="stage.coverage",
            message=f"{item.name!r} has no {item.count or 1} more blocks",
            path=path,
        )
    return [piece]


def coverage(
    lane: Lane, pieces: tuple[tuple[Piece, ...], ...], *, model: Model
) -> Iterator[Violation]:
    """Every block of the model exactly once (``stage.coverage``), none before what it reads
    (``stage.topology``).
    """
    whole: dict[int, int] = {}
    parts: dict[int, list[str]] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, piece in enumerate(p for chunk in pieces for p in chunk):
        first.setdefault(piece.run, place)
        last[piece.run] = place
        if piece.operator:
            parts.setdefault(piece.run, []).append(piece.operator)
        else:
            whole[piece.run] = whole.get(piece.run, 0) + piece.count
    path = f"lane {lane.name}"
    for i, run in enumerate(model.runs):
        expected = [] if i in whole else [o.name for o in model.blocks[run.block].operators]
        if whole.get(i, 0) != (0 if i in parts and i not in whole else run.count) or sorted(
            parts.get(i, [])
        ) != sorted(expected if i in parts else []):
            covered = f"{whole.get(i, 0)} of {run.count} blocks" + (
                f" and operators {', '.join(parts[i])}" if i in parts else ""
            )
            yield Violation(
                rule="stage.coverage",
                message=f"{run.name}: {covered} are in the stages",
                hint="every block, or every operator of a cut block, exactly once in each lane",
                path=path,
            )
        elif i in parts and parts[i] != expected:
            yield Violation(
                rule="stage.topology",
                message=f"{run.name}: operators in order {', '.join(parts[i])}",
                hint=", ".join(expected),
                path=path,
            )
    position = {run.name: i for i, run in enumerate(model.runs)}
    for i, run in enumerate(model.runs):
        for name in run.inputs:
            j = position[name]
            if i in first and j in last and last[j] > first[i]:
                yield Violation(
                    rule="stage.topology",
                    message=f"{run.name} comes before {name}, which it reads",
                    hint="stages are numbered from input to output",
                    path=path,
                )
