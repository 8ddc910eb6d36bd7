"""The Program of a general plan: the same tasks on streams as a grid's, their templates named by lane, chunk and slice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.program.action_rows import ActionRows
from shardwright.program.instances import Instances, TaskKind
from shardwright.program.stage_edges import Messages, StageEdge
from shardwright.program.stage_parts import StageParts
from shardwright.strategy.plan import Plan

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that do the same: of one row of the order, and of one family in each of their stages.

    Args:
        devices: sorted; the first one stands for all. row: of the order. families: (lane, chunk, family) of each of its stages.
    """

    devices: tuple[int, ...]
    row: int
    families: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTemplate:
    """What equal tasks are.

    Args:
        kind: see `TaskKind`. klass: of devices. lane, chunk, slice: -1 where it has none. edge: index of a send's edge, else -1.
        piece, pieces: a last backward, or a reduction, cut into buckets. early: what it recomputes has an action of its own.
        partner: (lane, chunk, kind, slice) of the action that it runs overlapped with; None = it runs alone.
    """

    kind: TaskKind
    klass: int
    lane: int = -1
    chunk: int = -1
    slice: int = 0
    edge: int = -1
    piece: int = 0
    pieces: int = 1
    early: bool = False
    partner: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEdge:
    """An edge between two stages of a lane, with its messages forward and backward."""

    lane: int
    edge: StageEdge
    forward: Messages
    backward: Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """What the tasks depend on beside the plan.

    Args:
        pieces: of each (lane, chunk)'s last backward. coupled: families of a stage that start together, by (lane, chunk, family).
        holders: (lane, chunk, class) -> ((lane, chunk), classes): whose last backwards a reduction waits for.
        gathers: parameters are gathered at the start of the step. blocking: sends run on the compute stream.
        reduces_last: gradients are reduced once all of them are there.
    """

    pieces: dict[tuple[int, int], int]
    coupled: dict[tuple[int, int, int], tuple[int, ...]]
    holders: dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[int, ...]], ...]]
    gathers: bool
    blocking: bool
    reduces_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgram:
    """A lowered general plan."""

    plan: Plan
    stages: tuple[tuple[StageParts, ...], ...]
    rows: ActionRows
    classes: tuple[DeviceClass, ...]
    edges: tuple[LaneEdge, ...]
    templates: tuple[PlanTemplate, ...]
    instances: Instances


def device_classes(stages: tuple[tuple[StageParts, ...], ...], rows: ActionRows) -> tuple[DeviceClass, ...]:
    """The devices of every row, by the families that they are of."""
    families: dict[int, list[tuple[int, int, int]]] = {}
    for lane in stages:
        for stage in lane:
            for index, family in enumerate(stage.families):
                for device in family:
                    families.setdefault(device, []).append((stage.lane, stage.chunk, index))
    groups: dict[tuple[int, tuple[tuple[int, int, int], ...]], list[int]] = {}
    for row, devices in enumerate(rows.devices):
        for device in devices:
            groups.setdefault((row, tuple(families[device])), []).append(device)
    return tuple(DeviceClass(devices=tuple(sorted(devices)), row=row, families=of) for (row, of), devices in groups.items())


def class_numbers(classes: tuple[DeviceClass, ...]) -> Int64:
    """The class of each device, -1 for devices of no stage."""
    result = np.full(max(c.devices[-1] for c in classes) + 1, -1, dtype=np.int64)
    for number, one in enumerate(classes):
        result[list(one.devices)] = number
    return result
