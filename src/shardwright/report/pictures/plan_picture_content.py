"""The content of a plan's picture: devices x layers, split trees and schedules.

The drawings are in plan_svg, plan_text and plan_picture_json.

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
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model, Run
from shardwright.report.pictures.devices_with_equal_shares import (
    device_classes,
    device_text,
    split_paths,
)
from shardwright.report.pictures.divide_blocks_at_plan_boundaries import ColumnBlocks, block_ranges
from shardwright.report.pictures.schedule_text import OrderPicture, order_pictures
from shardwright.report.pictures.split_tree_nodes_and_text_lines import TreeNode, split_tree
from shardwright.report.pictures.step_picture_content import StepPicture
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Placement, Stage
from shardwright.strategy.text.replace_unprintable_characters import MAX_STRATEGY, printable
from shardwright.strategy.text.stage_first_device_notation import print_bases


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureColumn:
    """Blocks with equal work on every class of devices; one column of the grid.

    `parts`: the names of the blocks, such as ``embed`` and ``0-7`` (layers 0 to 7).
    """

    parts: tuple[str, ...]
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """A class of devices with the same stages and shares; one row of the grid.

    `members` are their numbers, `devices` these as text, `kind` what they are, where that is known
    and there are several.
    """

    devices: str
    members: IntArray = field(compare=False, repr=False)
    kind: str = ""

    @property
    def count(self) -> int:
        """Number of devices of the row's class."""
        return int(self.members.size)

    def label(self, *, length: int) -> str:
        """Text of the devices, cut to `length` characters, with their number and kind."""
        devices = self.devices[: length - 1] + "…" if len(self.devices) > length else self.devices
        count = f" ({self.count:,})" if self.count > 1 else ""
        return f"{devices}{count}{f' {self.kind}' if self.kind else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureCell:
    """The chunk of a lane on a row's devices in a column, with the cuts to them (``b2 t8``)."""

    row: int
    column: int
    lane: int
    chunk: int
    degrees: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrees:
    """The split trees that several stages share.

    Args:
        letter: A, B, .. in order of appearance.
        stages: ``main 0-3 on 0..24/8``, one line a lane.
        trees: (title, root) of each tree, at the first of these stages.
    """

    letter: str
    stages: tuple[str, ...]
    trees: tuple[tuple[str, TreeNode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPicture:
    """Everything that a plan's picture shows: lanes, grid, split trees, schedules and the step.

    Args:
        lanes: (name, what it takes).
        letters: by lane and chunk, the trees it uses.
        step: as simulated, where it is known what it trains and where.
    """

    name: str
    devices: int
    lanes: tuple[tuple[str, str], ...]
    columns: tuple[PictureColumn, ...]
    rows: tuple[PictureRow, ...]
    cells: tuple[PictureCell, ...]
    trees: tuple[StageTrees, ...]
    letters: tuple[tuple[str, ...], ...]
    orders: tuple[OrderPicture, ...]
    step: StepPicture | None = None


def plan_picture(plan: Plan, *, model: Model, name: str = "plan") -> PlanPicture:
    """Compute the picture of `plan`: grid of device classes and blocks, split trees, schedules.

    Cells of a row and a column: one for each lane whose stage there runs an operator on these
    devices. Left out: shards, recompute and offload, and all times.

    Raises:
        StrategyError: stages and model do not fit (rules ``stage.item``, ``stage.coverage``,
            ``placement.missing``), a device is not the plan's, or the plan is too large to draw.
    """
    spans = block_ranges(plan, model=model)
    uses = dict.fromkeys((lane, *owner) for span in spans for lane, owner in enumerate(span.owners))
    reached = {
        use: [
            (way, stage.base + p.offset + offsets)
            for p in (stage.placements[n] for n in use[2])
            for way, offsets in split_paths(p.split)
        ]
        for use in uses
        for stage in (plan.lanes[use[0]].stages[use[1]],)
    }
    klass = device_classes(
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
    trees, letters = _trees_and_letters(plan)
    return PlanPicture(
        name=printable(" ".join(map(printable, name.split(" "))), length=MAX_STRATEGY),
        devices=plan.devices,
        lanes=tuple((printable(lane.name), _lane_text(lane)) for lane in plan.lanes),
        columns=columns,
        rows=tuple(PictureRow(devices=device_text(members), members=members) for members in groups),
        cells=cells,
        trees=trees,
        letters=letters,
        orders=order_pictures(plan, rows=groups, takes=_stages_of_rows(cells, rows=len(groups))),
    )


_Use = tuple[int, int, tuple[int, ...]]


def _columns(
    spans: Sequence[ColumnBlocks], degrees: dict[_Use, dict[int, str]], *, model: Model
) -> tuple[tuple[PictureColumn, ...], tuple[PictureCell, ...]]:
    """Merge neighbouring block ranges with equal cells into columns; returns columns and cells."""
    columns: list[PictureColumn] = []
    cells: list[PictureCell] = []

    def look(span: ColumnBlocks) -> tuple[tuple[int, dict[int, str]], ...]:
        """(chunk, device class -> cuts) by lane; neighbours with equal values join."""
        return tuple(
            (chunk, degrees[lane, chunk, used]) for lane, (chunk, used) in enumerate(span.owners)
        )

    for looks, several in groupby(spans, key=look):
        group = list(several)
        cells += [
            PictureCell(row=row, column=len(columns), lane=lane, chunk=chunk, degrees=way)
            for lane, (chunk, row_paths) in enumerate(looks)
            for row, way in sorted(row_paths.items())
        ]
        blocks = sum(span.count for span in group if not span.operator) + len(
            {span.run for span in group if span.operator}
        )
        columns.append(PictureColumn(parts=_block_names(group, model=model), blocks=blocks))
    return tuple(columns), tuple(cells)


def _block_names(spans: Sequence[ColumnBlocks], *, model: Model) -> tuple[str, ...]:
    """Names of a column's blocks: ``0-7`` for layers, others by run, neighbours joined."""
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
    """(shared name, number of the first block) of a run; number -1 if blocks have none."""
    stem, _, number = run.name.rpartition(".")
    if stem and number.isascii() and number.isdigit() and len(number) < 9:
        return stem, int(number)
    return run.name, 0 if run.count > 1 or run.name == "layers" else -1


def _lane_text(lane: Lane) -> str:
    """Text of a lane: its role, or its samples, microbatches and slices."""
    slices = f", {len(lane.slices)} slices" if lane.slices else ""
    if lane.role is not Role.TRAIN:
        return f"{lane.role.value}{slices}"
    return f"{lane.samples:,} samples in {lane.microbatches:,} microbatches{slices}"


def _stages_of_rows(cells: Sequence[PictureCell], *, rows: int) -> list[frozenset[tuple[int, int]]]:
    """For each row, the set of (lane, chunk) that the row's devices run."""
    result: list[set[tuple[int, int]]] = [set() for _ in range(rows)]
    for cell in cells:
        result[cell.row].add((cell.lane, cell.chunk))
    return [frozenset(pairs) for pairs in result]


def _trees_and_letters(plan: Plan) -> tuple[tuple[StageTrees, ...], tuple[tuple[str, ...], ...]]:
    """The distinct placements of a plan's stages as trees, and each stage's letter by lane."""
    users: dict[tuple[Placement, ...], dict[int, list[int]]] = {}
    for number, lane in enumerate(plan.lanes):
        for chunk, stage in enumerate(lane.stages):
            users.setdefault(stage.placements, {}).setdefault(number, []).append(chunk)
    letter = {placements: _letter(place) for place, placements in enumerate(users)}
    result = []
    for placements, lanes in users.items():
        lines = tuple(
            _stage_list_text(plan.lanes[number], chunks) for number, chunks in lanes.items()
        )
        first = next(iter(lanes))
        stage = plan.lanes[first].stages[lanes[first][0]]
        result.append(
            StageTrees(letter=letter[placements], stages=lines, trees=_named_trees(stage))
        )
    return tuple(result), tuple(
        tuple(letter[stage.placements] for stage in lane.stages) for lane in plan.lanes
    )


def _stage_list_text(lane: Lane, chunks: Sequence[int]) -> str:
    """Text of stages that share split trees: lane, stage numbers and their first devices."""
    bases = printable(print_bases([lane.stages[c].base for c in chunks]), length=60)
    noun = "stage" if len(chunks) == 1 else "stages"
    return (
        f"{printable(lane.name)}: {noun} {printable(print_bases(chunks), length=60)} from device"
        f" {bases}"
    )


def _letter(place: int) -> str:
    """Letter for stages by position: A to Z, then A1 to Z1, A2 .."""
    round_number, at = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[at] + (str(round_number) if round_number else "")


def _named_trees(stage: Stage) -> tuple[tuple[str, TreeNode], ...]:
    """(names of the operator classes, split tree) of each distinct tree of a stage."""
    names: dict[tuple[object, ...], list[str]] = {}
    for p in stage.placements:
        blocks = f"[{p.select.blocks[0]}-{p.select.blocks[1]}]" if p.select.blocks else ""
        via = f" via {p.exchange.value}" if p.exchange else ""
        names.setdefault((p.split, p.offset), []).append(
            printable(",".join(p.select.classes) or "all") + blocks + via
        )
    splits = dict.fromkeys((p.split, p.offset) for p in stage.placements)
    return tuple(
        (", ".join(names[key]), split_tree(key[0], first_device=stage.base + key[1]))
        for key in splits
    )
