"""The Program of a general plan: the same tasks on streams as a grid's, their templates named by
lane, chunk and slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from shardwright.arrays import Int32Array, IntArray, distinct, split_by
from shardwright.hardware.device_list import DeviceList, apart
from shardwright.lazy_dataclass import dataclass
from shardwright.program.instances import Instances, TaskKind
from shardwright.program.orders.rows import ActionRows
from shardwright.program.same import Same
from shardwright.program.stages.edges import LaneEdge, Messages
from shardwright.program.stages.parts import StageParts
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that do the same: of one row of the order, and of one family in each of their stages.

    Args:
        devices: sorted; the first one stands for all.
        row: of the order.
        families: (lane, chunk, family) of each of its stages.
    """

    devices: DeviceList
    row: int
    families: tuple[tuple[int, int, int], ...]


def chunks_of(classes: tuple[DeviceClass, ...]) -> int:
    """The most chunks that a device has, of all lanes."""
    return max(len({(lane, chunk) for lane, chunk, _ in one.families}) for one in classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What equal tasks are.

    Args:
        kind: see `TaskKind`.
        klass: of devices.
        lane, chunk, slice: -1 where it has none.
        edge: index of a send's edge, else -1.
        piece, pieces: a last backward, or a reduction, cut into buckets.
        early: what it recomputes has an action of its own.
        partner: (lane, chunk, kind, slice) of the action that it runs overlapped with; None = it
            runs alone.
    """

    kind: TaskKind
    klass: int
    lane: int
    chunk: int
    slice: int
    edge: int
    piece: int
    pieces: int
    early: bool
    partner: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Templates as read-only arrays, one entry a template; fields as in `PlanTemplate`, the
    partner's -1 where a task runs alone.
    """

    kind: IntArray
    klass: IntArray
    lane: IntArray
    chunk: IntArray
    slice: IntArray
    edge: IntArray
    piece: IntArray
    pieces: IntArray
    early: IntArray
    partner_lane: IntArray
    partner_chunk: IntArray
    partner_kind: IntArray
    partner_slice: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, index: int) -> Template:
        kind, klass, lane, chunk, part, edge, piece, pieces, early, *partner = (
            int(getattr(self, f)[index]) for f in Templates.__slots__
        )
        return Template(
            kind=TaskKind(kind),
            klass=klass,
            lane=lane,
            chunk=chunk,
            slice=part,
            edge=edge,
            piece=piece,
            pieces=pieces,
            early=bool(early),
            partner=(partner[0], partner[1], partner[2], partner[3]) if partner[2] >= 0 else None,
        )

    def __iter__(self) -> Iterator[Template]:
        return (self[index] for index in range(len(self)))


def templates_of(columns: dict[str, IntArray]) -> tuple[Templates, IntArray]:
    """The distinct tasks among `columns` (one entry a task), and the template of each task."""
    code = np.zeros(len(columns["kind"]), dtype=np.int64)
    room = 2**62
    for name in Templates.__slots__:
        values = columns[name] + 1
        width = int(values.max(initial=0)) + 1
        if room < width:
            _, code = np.unique(code, return_inverse=True)
            room = 2**62 // (int(code.max(initial=0)) + 1)
        code, room = code * width + values, room // width
    _, first, template = np.unique(code, return_index=True, return_inverse=True)
    found = Templates(**{name: columns[name][first] for name in Templates.__slots__})
    for name in Templates.__slots__:
        getattr(found, name).setflags(write=False)
    return found, template.reshape(-1).astype(np.int64)


Holders = dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[int, ...]], ...]]
"""By (lane, chunk, class of devices): ((lane, chunk), classes) of each use of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posts:
    """Every class of devices in every of its stages, numbered class by class.

    Args:
        klass, lane, chunk, family: (posts,).
        number: (classes, stages of all lanes) post, -1 = none.
        first_stage: (lanes,) number of each lane's first stage.
        of_stage: by (lane, chunk), class -> post.
    """

    klass: IntArray
    lane: IntArray
    chunk: IntArray
    family: IntArray
    number: IntArray
    first_stage: IntArray
    of_stage: dict[tuple[int, int], dict[int, int]]


def posts_of(stages: tuple[tuple[StageParts, ...], ...], classes: tuple[DeviceClass, ...]) -> Posts:
    """The posts of `classes`."""
    first_stage = np.cumsum([0, *(len(lane) for lane in stages)]).astype(np.int64)
    table = np.array(
        [(k, *place) for k, one in enumerate(classes) for place in one.families], dtype=np.int64
    ).reshape(-1, 4)
    klass, lane, chunk, family = table.T
    number = np.full((len(classes), int(first_stage[-1])), -1, dtype=np.int64)
    number[klass, first_stage[lane] + chunk] = np.arange(len(table))
    of_stage: dict[tuple[int, int], dict[int, int]] = {
        (n, c): {} for n, stages_of in enumerate(stages) for c in range(len(stages_of))
    }
    for post, (k, *place, _) in enumerate(table.tolist()):
        of_stage[place[0], place[1]][k] = post
    return Posts(
        klass=klass,
        lane=lane,
        chunk=chunk,
        family=family,
        number=number,
        first_stage=first_stage[:-1],
        of_stage=of_stage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShape:
    """What the tasks depend on beside the plan.

    Args:
        pieces: of each (lane, chunk)'s last backward.
        coupled: families of a stage that start together, by (lane, chunk, family).
        holders: whose last backwards a reduction waits for;
        tied: the same of the reduction of weights that other stages use too, which comes last;
            classes without such weights have no entry.
        gathers: parameters are gathered at the start of the step.
        blocking: sends run on the compute stream.
        reduces_last: gradients are reduced once all of them are there.
    """

    pieces: dict[tuple[int, int], int]
    coupled: dict[tuple[int, int, int], tuple[int, ...]]
    holders: Holders
    tied: Holders
    gathers: bool
    blocking: bool
    reduces_last: bool

    def __hash__(self) -> int:
        return hash((tuple(self.pieces.items()), self.gathers, self.blocking, self.reduces_last))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A lowered general plan."""

    plan: Plan
    stages: tuple[tuple[StageParts, ...], ...]
    rows: ActionRows
    classes: tuple[DeviceClass, ...]
    edges: tuple[LaneEdge, ...]
    posts: Posts
    templates: Templates
    instances: Instances


def device_classes(
    stages: tuple[tuple[StageParts, ...], ...], rows: ActionRows
) -> tuple[DeviceClass, ...]:
    """The devices of every row, by the families that they are of."""
    every = [stage for lane in stages for stage in lane]
    known = {id(stage.families): stage.families for stage in every}
    row_of = {row: number for number, row in enumerate(rows.devices)}
    # A family of all devices of a row tells none of them apart.
    whole = {
        key: row
        for key, families in known.items()
        if len(families) == 1 and (row := row_of.get(families[0], -1)) >= 0
    }
    members = {key: families for key, families in known.items() if key not in whole}
    parts, family_of = _parts_of_rows(rows, members)
    # By row the stages that all of its devices are one family of.
    of_row: dict[int, list[tuple[int, int, int]]] = {}
    others: list[StageParts] = []
    for stage in every:
        if (there := whole.get(id(stage.families))) is None:
            others.append(stage)
        else:
            of_row.setdefault(there, []).append((stage.lane, stage.chunk, 0))
    classes = []
    for number, classes_of_row in enumerate(parts):
        for own in classes_of_row:
            index_of = {key: int(where[own[0]]) for key, where in family_of.items()}
            mine = [
                (s.lane, s.chunk, index) for s in others if (index := index_of[id(s.families)]) >= 0
            ]
            classes.append(
                DeviceClass(
                    devices=own, row=number, families=tuple(sorted(of_row.get(number, []) + mine))
                )
            )
    return tuple(classes)


def _parts_of_rows(
    rows: ActionRows, members: dict[int, tuple[DeviceList, ...]]
) -> tuple[list[tuple[DeviceList, ...]], dict[int, Int32Array]]:
    """Devices of each row by the families that they are of, and by stages' families the one that
    each device is of, -1 = none.
    """
    if not members and apart(rows.devices):
        return [(row,) for row in rows.devices], {}
    last = max(
        devices[-1]
        for devices in (
            *rows.devices,
            *(family for families in members.values() for family in families),
        )
    )
    colour = np.zeros(1 + last, dtype=np.int64)
    for number, row in enumerate(rows.devices):
        colour[row.array] = number
    colours = rows.num_rows
    family_of = {}
    for key, families in members.items():
        where = np.full(len(colour), -1, dtype=np.int32)
        for index, family in enumerate(families):
            devices = family.array
            where[devices] = index
            mixed, place = np.unique(colour[devices], return_inverse=True)
            colour[devices] = place.reshape(-1) + colours
            colours += len(mixed)
        family_of[key] = where
    result = []
    for row in rows.devices:
        devices = row.array
        own = colour[devices]
        result.append(
            (row,) if (own == own[0]).all() else tuple(map(DeviceList.of, split_by(devices, own)))
        )
    return result, family_of


def class_numbers(classes: tuple[DeviceClass, ...]) -> Int32Array:
    """The class of each device, -1 for devices of no stage."""
    return _class_numbers(Same(classes))


@lru_cache(maxsize=8)
def _class_numbers(known: Same[tuple[DeviceClass, ...]]) -> Int32Array:
    classes = known.value
    result = np.full(max(c.devices.last for c in classes) + 1, -1, dtype=np.int32)
    for number, one in enumerate(classes):
        result[one.devices.array] = number
    result.setflags(write=False)
    return result


def reached(messages: Messages, class_of: Int32Array) -> dict[int, tuple[int, ...]]:
    """Class -> classes that its devices send to."""
    ends = class_of[messages.sends[:, :2] + messages.base].astype(np.int64)
    count = int(class_of.max(initial=0)) + 1
    result: dict[int, tuple[int, ...]] = {}
    for code in distinct(ends[:, 0] * count + ends[:, 1]).tolist():
        source, target = divmod(code, count)
        result[source] = (*result.get(source, ()), target)
    return result
