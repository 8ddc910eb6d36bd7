"""Classes of devices that run the same actions, and their places in the stages of a plan."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import Int32Array, IntArray, split_by
from shardwright.hardware.strided_device_list import DeviceList, are_disjoint
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_segments import StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that run the same tasks.

    Devices of one row of the order, and of one family in each of their stages.

    Args:
        devices: sorted; the first one stands for all.
        row: row of the order.
        families: (lane, chunk, family) of each of its stages.
    """

    devices: DeviceList
    row: int
    families: tuple[tuple[int, int, int], ...]


def chunks_of(classes: tuple[DeviceClass, ...]) -> int:
    """Largest number of different (lane, chunk) pairs that one device runs."""
    return max(
        len({(lane, chunk) for lane, chunk, _ in device_class.families}) for device_class in classes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Posts:
    """Posts: every class of devices in every one of its stages, numbered class by class.

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
    """Number the posts of `classes`: each class in each of its stages."""
    first_stage = np.cumsum([0, *(len(lane) for lane in stages)]).astype(np.int64)
    table = np.array(
        [(k, *place) for k, device_class in enumerate(classes) for place in device_class.families],
        dtype=np.int64,
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


Holders = dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[int, ...]], ...]]
"""By (lane, chunk, class of devices): ((lane, chunk), classes) of each use of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShape:
    """Inputs of the task graph besides the plan: pieces, coupling, holders and switches.

    Args:
        pieces: number of pieces of each (lane, chunk)'s last backward.
        coupled: families of a stage that start together, by (lane, chunk, family).
        holders: uses whose last backwards a reduction waits for.
        tied: the same for the reduction of weights that other stages use too, which comes last;
            classes without such weights have no entry.
        gathers: parameters are gathered at the start of the step.
        blocking: sends run on the compute stream.
        reduces_last: gradients are reduced once all of them are complete.
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


def device_classes(
    stages: tuple[tuple[StageParts, ...], ...], rows: ActionRows
) -> tuple[DeviceClass, ...]:
    """Device classes of a plan: the devices of every row, divided by their families."""
    all_stages = [stage for lane in stages for stage in lane]
    families_by_id = {id(stage.families): stage.families for stage in all_stages}
    row_of = {row: number for number, row in enumerate(rows.devices)}
    # A family of all devices of a row tells none of them apart.
    row_of_whole_family = {
        key: row
        for key, families in families_by_id.items()
        if len(families) == 1 and (row := row_of.get(families[0], -1)) >= 0
    }
    families_of_parts = {
        key: families for key, families in families_by_id.items() if key not in row_of_whole_family
    }
    parts, family_of = _rows_split_by_families(rows, families_of_parts)
    # By row the stages that all of its devices are one family of.
    places_of_row: dict[int, list[tuple[int, int, int]]] = {}
    divided_stages: list[StageParts] = []
    for stage in all_stages:
        if (row_of_stage := row_of_whole_family.get(id(stage.families))) is None:
            divided_stages.append(stage)
        else:
            places_of_row.setdefault(row_of_stage, []).append((stage.lane, stage.chunk, 0))
    classes = []
    for number, classes_of_row in enumerate(parts):
        for devices in classes_of_row:
            index_of = {key: int(where[devices[0]]) for key, where in family_of.items()}
            divided_places = [
                (s.lane, s.chunk, index)
                for s in divided_stages
                if (index := index_of[id(s.families)]) >= 0
            ]
            classes.append(
                DeviceClass(
                    devices=devices,
                    row=number,
                    families=tuple(sorted(places_of_row.get(number, []) + divided_places)),
                )
            )
    return tuple(classes)


def _rows_split_by_families(
    rows: ActionRows, members: dict[int, tuple[DeviceList, ...]]
) -> tuple[list[tuple[DeviceList, ...]], dict[int, Int32Array]]:
    """(each row's devices split by families; key of `members` -> family of each device, -1 = none).

    For each stage's families; -1 = none.
    """
    if not members and are_disjoint(rows.devices):
        return [(row,) for row in rows.devices], {}
    last = max(
        devices[-1]
        for devices in (
            *rows.devices,
            *(family for families in members.values() for family in families),
        )
    )
    colour_of_device = np.zeros(1 + last, dtype=np.int64)
    for number, row in enumerate(rows.devices):
        colour_of_device[row.array] = number
    colours = rows.num_rows
    family_of = {}
    for key, families in members.items():
        family_of_device = np.full(len(colour_of_device), -1, dtype=np.int32)
        for index, family in enumerate(families):
            devices = family.array
            family_of_device[devices] = index
            old_colours, place = np.unique(colour_of_device[devices], return_inverse=True)
            colour_of_device[devices] = place.reshape(-1) + colours
            colours += len(old_colours)
        family_of[key] = family_of_device
    parts = []
    for row in rows.devices:
        devices = row.array
        colours_of_row = colour_of_device[devices]
        parts.append(
            (row,)
            if (colours_of_row == colours_of_row[0]).all()
            else tuple(map(DeviceList.of, split_by(devices, colours_of_row)))
        )
    return parts, family_of


def class_numbers(classes: tuple[DeviceClass, ...]) -> Int32Array:
    """(devices,) number of each device's class, -1 for devices of no stage."""
    return _class_numbers(Same(classes))


@lru_cache(maxsize=8)
def _class_numbers(all_classes: Same[tuple[DeviceClass, ...]]) -> Int32Array:
    """(devices,) number of each device's class, -1 for devices of no stage (cached, read-only)."""
    classes = all_classes.value
    class_of_device = np.full(max(c.devices.last for c in classes) + 1, -1, dtype=np.int32)
    for number, device_class in enumerate(classes):
        class_of_device[device_class.devices.array] = number
    class_of_device.setflags(write=False)
    return class_of_device
