"""A plan as a picture, before it has a form: devices x layers, the split trees of its stages, its
orders.

Columns are the blocks of the model in order, folded where nothing changes; rows are classes of
devices that do the same, folded whatever their number; a cell is what a class does in a column for
one lane. The terminal, the SVG and the JSON face draw this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import groupby
from string import ascii_uppercase

import numpy as np

from shardwright.arrays import IntArray, distinct
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model, Run
from shardwright.report.pictures.device_classes import classes_of, device_text, ways
from shardwright.report.pictures.layer_columns import Stretch, stretches
from shardwright.report.pictures.schedule_text import OrderPicture, order_pictures
from shardwright.report.pictures.split_tree import TreeNode, split_tree
from shardwright.report.pictures.step_picture import StepPicture
from shardwright.strategy.plan.lane import Lane, Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stages import Placement, Stage
from shardwright.strategy.text.base_notation import print_bases
from shardwright.strategy.text.printable import MAX_STRATEGY, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Blocks in which every class of devices does the same. `parts`: their names, such as ``embed``
    and ``0-7`` (layers 0 to 7).
    """

    parts: tuple[str, ...]
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Devices that take part in the same stages with the same shares.

    `members` are their numbers, `devices` these as text, `kind` what they are, where that is known
    and there are several.
    """

    devices: str
    members: IntArray = field(compare=False, repr=False)
    kind: str = ""

    @property
    def count(self) -> int:
        """Devices of the class."""
        return int(self.members.size)

    def label(self, *, length: int) -> str:
        """Its devices, cut off behind `length` letters, how many they are, and their kind."""
        devices = self.devices[: length - 1] + "…" if len(self.devices) > length else self.devices
        count = f" ({self.count:,})" if self.count > 1 else ""
        return f"{devices}{count}{f' {self.kind}' if self.kind else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The chunk that the devices of a row run in a column for a lane, and the cuts that lead to
    them (``b2 t8``).
    """

    row: int
    column: int
    lane: int
    chunk: int
    degrees: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The trees that some stages share.

    Args:
        letter: A, B, .. in order of appearance.
        stages: ``main 0-3 on 0..24/8``, one line a lane.
        trees: (title, root) of each tree, at the first of these stages.
    """

    letter: str
    stages: tuple[str, ...]
    trees: tuple[tuple[str, TreeNode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn of a plan.

    Args:
        lanes: (name, what it takes).
        letters: by lane and chunk, the trees it uses.
        step: as simulated, where it is known what it trains and where.
    """

    name: str
    devices: int
    lanes: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    trees: tuple[Trees, ...]
    letters: tuple[tuple[str, ...], ...]
    orders: tuple[OrderPicture, ...]
    step: StepPicture | None = None


def picture_of(plan: Plan, *, model: Model, name: str = "plan") -> Picture:
    """The picture of `plan` for `model`.

    Cells of a row and a column: one for each lane whose stage there runs an operator on these
    devices. Left out: shards, recompute and offload, and all times.

    Raises:
        StrategyError: stages and model do not fit (rules ``stage.item``, ``stage.coverage``,
            ``placement.missing``), a device is not the plan's, or the plan is too large to draw.
    """
    spans = stretches(plan, model=model)
    uses = dict.fromkeys((lane, *owner) for span in spans for lane, owner in enumerate(span.owners))
    reached = {
        use: [
            (way, stage.base + p.offset + offsets)
            for p in (stage.placements[n] for n in use[2])
            for way, offsets in ways(p.split)
        ]
        for use in uses
        for stage in (plan.lanes[use[0]].stages[use[1]],)
    }
    klass = classes_of(
        (members for several in reached.values() for _, members in several), devices=plan.devices
    )
    order = np.argsort(klass, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(klass))[:-1])
    # The first way to reach a class is the one of the stage's first placement there, mostly
    # ``all``.
    degrees = {
        use: {
            row: way
            for way, members in reversed(several)
            for row in distinct(klass[members]).tolist()
        }
        for use, several in reached.items()
    }
    columns, cells = _columns(spans, degrees, model=model)
    trees, letters = _trees(plan)
    return Picture(
        name=printable(" ".join(map(printable, name.split(" "))), length=MAX_STRATEGY),
        devices=plan.devices,
        lanes=tuple((printable(lane.name), _lane_text(lane)) for lane in plan.lanes),
        columns=columns,
        rows=tuple(Row(devices=device_text(members), members=members) for members in groups),
        cells=cells,
        trees=trees,
        letters=letters,
        orders=order_pictures(plan, rows=groups, takes=_takes(cells, rows=len(groups))),
    )


_Use = tuple[int, int, tuple[int, ...]]


def _columns(
    spans: Sequence[Stretch], degrees: dict[_Use, dict[int, str]], *, model: Model
) -> tuple[tuple[Column, ...], tuple[Cell, ...]]:
    """Neighbouring stretches that look the same as one column, and the cells of all columns."""
    columns: list[Column] = []
    cells: list[Cell] = []

    def look(span: Stretch) -> tuple[tuple[int, dict[int, str]], ...]:
        return tuple(
            (chunk, degrees[lane, chunk, used]) for lane, (chunk, used) in enumerate(span.owners)
        )

    for looks, several in groupby(spans, key=look):
        group = list(several)
        cells += [
            Cell(row=row, column=len(columns), lane=lane, chunk=chunk, degrees=way)
            for lane, (chunk, found) in enumerate(looks)
            for row, way in sorted(found.items())
        ]
        blocks = sum(span.count for span in group if not span.operator) + len(
            {span.run for span in group if span.operator}
        )
        columns.append(Column(parts=_parts(group, model=model), blocks=blocks))
    return tuple(columns), tuple(cells)


def _parts(spans: Sequence[Stretch], *, model: Model) -> tuple[str, ...]:
    """Names of blocks: layers by their numbers alone, others by the run's name; neighbours are
    joined.
    """
    parts: list[tuple[str, int, int]] = []
    names: list[tuple[str, str]] = []
    for span in spans:
        run = model.runs[span.run]
        name, start = _numbered(run)
        first = start + span.first
        if span.operator:
            parts.append((f"{run.name}.{span.operator}", -1, -1))
        elif parts and start >= 0 and parts[-1][0] == name and parts[-1][2] + 1 == first:
            parts[-1] = (name, parts[-1][1], first + span.count - 1)
        else:
            parts.append((name, first, first + span.count - 1) if start >= 0 else (name, -1, -1))
    for name, first, last in parts:
        numbers = "" if first < 0 else f"{first}-{last}" if last > first else f"{first}"
        names.append(("" if name == "layers" else name, numbers))
    return tuple(printable(" ".join(word for word in words if word)) for words in names)


def _numbered(run: Run) -> tuple[str, int]:
    """The name that numbered blocks share and the number of the run's first; -1 for a block that
    stands alone.
    """
    stem, _, number = run.name.rpartition(".")
    if stem and number.isascii() and number.isdigit() and len(number) < 9:
        return stem, int(number)
    return run.name, 0 if run.count > 1 or run.name == "layers" else -1


def _lane_text(lane: Lane) -> str:
    slices = f", {len(lane.slices)} slices" if lane.slices else ""
    if lane.role is not Role.TRAIN:
        return f"{lane.role.value}{slices}"
    return f"{lane.samples:,} samples in {lane.microbatches:,} microbatches{slices}"


def _takes(cells: Sequence[Cell], *, rows: int) -> list[frozenset[tuple[int, int]]]:
    """(lane, chunk) that each row takes part in."""
    result: list[set[tuple[int, int]]] = [set() for _ in range(rows)]
    for cell in cells:
        result[cell.row].add((cell.lane, cell.chunk))
    return [frozenset(found) for found in result]


def _trees(plan: Plan) -> tuple[tuple[Trees, ...], tuple[tuple[str, ...], ...]]:
    """The distinct placements of a plan's stages, and the letter of every stage."""
    users: dict[tuple[Placement, ...], dict[int, list[int]]] = {}
    for number, lane in enumerate(plan.lanes):
        for chunk, stage in enumerate(lane.stages):
            users.setdefault(stage.placements, {}).setdefault(number, []).append(chunk)
    letter = {placements: _letter(place) for place, placements in enumerate(users)}
    result = []
    for placements, lanes in users.items():
        lines = tuple(_users(plan.lanes[number], chunks) for number, chunks in lanes.items())
        first = next(iter(lanes))
        stage = plan.lanes[first].stages[lanes[first][0]]
        result.append(Trees(letter=letter[placements], stages=lines, trees=_roots(stage)))
    return tuple(result), tuple(
        tuple(letter[stage.placements] for stage in lane.stages) for lane in plan.lanes
    )


def _users(lane: Lane, chunks: Sequence[int]) -> str:
    bases = printable(print_bases([lane.stages[c].base for c in chunks]), length=60)
    noun = "stage" if len(chunks) == 1 else "stages"
    return (
        f"{printable(lane.name)}: {noun} {printable(print_bases(chunks), length=60)} from device"
        f" {bases}"
    )


def _letter(place: int) -> str:
    """A to Z, then A1, B1, .."""
    turn, at = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[at] + (str(turn) if turn else "")


def _roots(stage: Stage) -> tuple[tuple[str, TreeNode], ...]:
    """Each tree of a stage once, under the names of all classes that use it."""
    found: dict[tuple[object, ...], list[str]] = {}
    for p in stage.placements:
        blocks = f"[{p.select.blocks[0]}-{p.select.blocks[1]}]" if p.select.blocks else ""
        via = f" via {p.exchange.value}" if p.exchange else ""
        found.setdefault((p.split, p.offset), []).append(
            printable(",".join(p.select.classes) or "all") + blocks + via
        )
    splits = dict.fromkeys((p.split, p.offset) for p in stage.placements)
    return tuple(
        (", ".join(found[key]), split_tree(key[0], base=stage.base + key[1])) for key in splits
    )
