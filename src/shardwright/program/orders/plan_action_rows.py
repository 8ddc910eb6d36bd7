"""Orders of a general plan as rows of actions, one row for each class of devices.

Devices of one class run the same stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shardwright.arrays import Int8Array, Int32Array, IntArray
from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.orders.stage_device_sets_and_classes import Participation, participation
from shardwright.schedules.action_order_arrays import KINDS, ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.schedules.schedule_registry import schedule, schedule_table
from shardwright.strategy.plan.pipeline_order import Kind, NamedOrder, Table, actions_of
from shardwright.strategy.plan.plan import Plan

TABLE_SEARCH: Final = "table-search"
"""Name of an order that stands for a table yet to be found."""

_SIZES: Final = frozenset({"name", "num_ranks", "chunks_per_rank", "num_microbatches"})
_CODES: Final = {Kind(letter): code for code, letter in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionRows:
    """The total order of every device's actions, one row for each class of devices.

    Devices of a class run the same stages. Read-only arrays, CSR form.

    Rows stand order by order, inside an order by their lowest device. A stage whose devices are in
    several classes has each of its actions in each of their rows: its devices meet there.

    Args:
        devices: devices of each row, sorted.
        row_start: (rows + 1,) row r's actions are [row_start[r], row_start[r + 1]).
        kind: index into `schedules.action_order_arrays.KINDS`.
        lane: index into the plan's lanes.
        chunk: stage of the lane.
        microbatch, slice: counted inside the lane.
        overlapped: 1 where an action runs overlapped with the next one of its row; None where no
            action does.
    """

    devices: tuple[DeviceList, ...]
    row_start: Int32Array
    kind: Int8Array
    lane: Int32Array
    chunk: Int32Array
    microbatch: Int32Array
    slice: Int32Array
    overlapped: Int8Array | None = None

    def __post_init__(self) -> None:
        for name in ("row_start", "kind", "lane", "chunk", "microbatch", "slice", "overlapped"):
            array = getattr(self, name)
            if array is not None:
                array = array.view()
                array.flags.writeable = False
                object.__setattr__(self, name, array)

    @property
    def num_rows(self) -> int:
        """Number of rows: one for each class of devices."""
        return len(self.devices)

    @property
    def row(self) -> IntArray:
        """(actions,) index of the row (device class) that each action is in."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.row_start))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrderRows:
    """Rows of one order: devices, columns of all actions, and the length of each row.

    columns: (6, actions) kind, lane, chunk, microbatch, slice, overlapped.
    """

    devices: tuple[DeviceList, ...]
    columns: IntArray
    sizes: Sequence[int]


def action_rows(plan: Plan) -> ActionRows:
    """The actions of every device class of `plan`, in the order in which each class runs them.

    A named order is its schedule's table on the plan's stages: pipeline ranks are the distinct sets
    of devices, in the order in which the first lane meets them, and each stage must be where the
    schedule's placement has it. Slices of a lane are the schedule's ``slices``.

    Left out: a chunk without trainable operators keeps the backwards that its schedule gives it;
    only tables can say that a stage runs once for several microbatches.

    Raises:
        StrategyError: the stages are not where the schedule needs them (rule ``order.placement``),
            the schedule does not exist for these numbers (its own rules), or a table's rows are not
            those of the plan's classes (``order.rows``, ``order.actions``).
    """
    numbers = {lane.name: i for i, lane in enumerate(plan.lanes)}
    parts = []
    for i, order in enumerate(plan.orders):
        unknown = [name for name in order.lanes if name not in numbers]
        if unknown or not order.lanes:
            raise StrategyError(
                f"there is no lane {unknown[:1]}" if unknown else "no lanes",
                rule="order.lanes",
                path=f"order {i}",
            )
        lanes = tuple(numbers[name] for name in order.lanes)
        take = participation(plan, lanes=lanes)
        if isinstance(order, Table):
            parts.append(_rows_of_table(plan, order, lanes=lanes, take=take, path=f"order {i}"))
        else:
            parts.append(_rows_of_schedule(plan, order, lanes=lanes, take=take, path=f"order {i}"))
    columns = np.concatenate(
        [part.columns for part in parts] or [np.zeros((6, 0), np.int64)], axis=1
    )
    kind, lane, chunk, microbatch, part_of, pairs = columns.astype(np.int32)
    return ActionRows(
        devices=tuple(devices for part in parts for devices in part.devices),
        row_start=np.concatenate(
            ([0], np.cumsum([size for part in parts for size in part.sizes]))
        ).astype(np.int32),
        kind=kind.astype(np.int8),
        lane=lane,
        chunk=chunk,
        microbatch=microbatch,
        slice=part_of,
        overlapped=pairs.astype(np.int8) if pairs.any() else None,
    )


def _rows_of_table(
    plan: Plan, order: Table, *, lanes: tuple[int, ...], take: Participation, path: str
) -> _OrderRows:
    """Rows of an order that is written as a table, by lowest device; raise if they do not fit."""
    rows = dict(order.rows)
    keys = [devices[0] for devices in take.classes]
    if sorted(rows) != keys or len(rows) != len(order.rows):
        raise StrategyError(
            f"rows for devices {_first_numbers(sorted(rows))}, but the classes begin at"
            f" {_first_numbers(keys)}",
            hint=(
                "one row for each class of devices that take part in the same stages, keyed by its"
                " lowest device"
            ),
            rule="order.rows",
            path=path,
        )
    entries = [
        [
            (a, int(k == 0 and isinstance(e, tuple)))
            for e in rows[key]
            for k, a in enumerate(actions_of(e))
        ]
        for key in keys
    ]
    flat = [
        (_CODES[a.kind], a.lane, a.chunk, a.microbatch, a.slice, pair)
        for row in entries
        for a, pair in row
    ]
    columns = np.array(flat, np.int64).reshape(-1, 6).T
    _check_actions(plan, columns, lanes=lanes, path=path)
    columns[1] = np.array(lanes)[columns[1]]
    return _OrderRows(devices=take.classes, columns=columns, sizes=[len(row) for row in entries])


def _check_actions(plan: Plan, columns: IntArray, *, lanes: tuple[int, ...], path: str) -> None:
    """Raise if an action names a stage, a microbatch or a slice that does not exist."""
    lanes_of_order = [plan.lanes[lane] for lane in lanes]
    _, lane, chunk, microbatch, part, _ = columns
    stages, microbatches, parts = np.array(
        [
            (len(lane_plan.stages), lane_plan.microbatches, max(1, len(lane_plan.slices)))
            for lane_plan in lanes_of_order
        ]
    ).T
    known_lane = np.minimum(lane, len(lanes_of_order) - 1)
    wrong = (
        (lane != known_lane)
        | (chunk >= stages[known_lane])
        | (microbatch >= microbatches[known_lane])
        | (part >= parts[known_lane])
    )
    wrong |= columns.min(axis=0) < 0
    if wrong.any():
        _, lane, chunk, microbatch, part, _ = columns[:, int(np.argmax(wrong))]
        message = f"there is no chunk {chunk} microbatch {microbatch} slice {part} of lane {lane}"
        raise StrategyError(
            message, hint="counted from 0 in the lane", rule="order.actions", path=path
        )


def _first_numbers(numbers: list[int]) -> str:
    """Text of at most the first eight numbers."""
    return " ".join(map(str, numbers[:8])) + (" .." if len(numbers) > 8 else "")


def _rows_of_schedule(
    plan: Plan, order: NamedOrder, *, lanes: tuple[int, ...], take: Participation, path: str
) -> _OrderRows:
    """Rows of an order that names a schedule, sorted by the ranks' lowest devices."""
    if order.schedule == TABLE_SEARCH:
        raise StrategyError(
            "the table of this order has not been searched yet",
            hint="resolve the plan first",
            rule="order.schedule",
            path=path,
        )
    try:
        placement = schedule(order.schedule).placement
    except StrategyError as error:
        raise _with_path(error, path) from error
    ranks = _device_set_of_ranks(
        plan, order, placement=placement, lanes=lanes, take=take, path=path
    )
    table = _schedule_table(plan, order, lanes=lanes, ranks=len(ranks), path=path)
    turn = sorted(range(len(ranks)), key=lambda rank: take.sets[ranks[rank]].first)
    picked = np.concatenate(
        [np.arange(table.row_start[rank], table.row_start[rank + 1]) for rank in turn]
    )
    pairs = table.overlapped if table.overlapped is not None else np.zeros_like(table.kind)
    lane = np.array(lanes)[table.lane]
    columns = np.stack(
        [table.kind, lane, table.chunk, table.microbatch, table.slice, pairs]
    ).astype(np.int64)[:, picked]
    sizes = [int(table.row_start[rank + 1] - table.row_start[rank]) for rank in turn]
    devices = tuple([take.sets[ranks[rank]] for rank in turn])
    return _OrderRows(devices=devices, columns=columns, sizes=sizes)


def _device_set_of_ranks(
    plan: Plan,
    order: NamedOrder,
    *,
    placement: ChunkPlacement,
    lanes: tuple[int, ...],
    take: Participation,
    path: str,
) -> list[int]:
    """Index of each pipeline rank's device set, in rank order; raise if stages do not fit."""

    def refuse(message: str, hint: str) -> StrategyError:
        """Error of rule ``order.placement`` for this schedule, not raised."""
        return StrategyError(
            f"{order.schedule}: {message}", hint=hint, rule="order.placement", path=path
        )

    write = f"write a table, or order {TABLE_SEARCH}"
    if len(lanes) != placement.lanes:
        raise refuse(
            f"the schedule has {placement.lanes} lane{'s'[: placement.lanes - 1]}, the order names"
            f" {len(lanes)}",
            write,
        )
    if not take.disjoint:
        message = (
            "some stages share a part of their devices; a schedule needs stages on the same devices"
            " or on disjoint devices"
        )
        raise refuse(message, write)
    counts = [len(plan.lanes[lane].stages) for lane in lanes]
    walks = [
        [take.set_of[lane, chunk] for chunk in range(count)]
        for lane, count in zip(lanes, counts, strict=True)
    ]
    ranks = list(dict.fromkeys(walks[0]))
    if len(set(counts)) > 1 or not ranks or counts[0] % len(ranks):
        numbers = " and ".join(map(str, counts))
        raise refuse(
            f"{numbers} stages on {len(ranks)} sets of devices",
            f"put the same number of stages on each set in each lane; or {write}",
        )
    expected = chunk_ranks(placement, num_ranks=len(ranks), chunks_per_rank=counts[0] // len(ranks))
    for lane, (sets, places) in enumerate(zip(walks, expected.tolist(), strict=True)):
        misplaced = next(
            (
                c
                for c, (set_index, rank) in enumerate(zip(sets, places, strict=True))
                if set_index != ranks[rank]
            ),
            None,
        )
        if misplaced is not None:
            device, expected_device = (
                take.sets[set_index][0] for set_index in (sets[misplaced], ranks[places[misplaced]])
            )
            name = plan.lanes[lanes[lane]].name
            message = (
                f"stage {misplaced} of lane {name} begins at device {device}, a {placement.value}"
                f" placement has it at device {expected_device}"
            )
            raise refuse(message, f"move the stage, or {write}")
    infrequent = next(
        (
            c
            for lane in lanes
            for c, stage in enumerate(plan.lanes[lane].stages)
            if stage.every != 1
        ),
        None,
    )
    if infrequent is not None:
        raise refuse(f"stage {infrequent} does not run once a microbatch", write)
    return ranks


def _schedule_table(
    plan: Plan, order: NamedOrder, *, lanes: tuple[int, ...], ranks: int, path: str
) -> ActionTable:
    """Action table of a named schedule for the lanes' stages, microbatches and slices."""
    first_lane = plan.lanes[lanes[0]]
    parameters: dict[str, int] = {}
    for name, value in order.parameters:
        if not isinstance(value, int) or name in _SIZES:
            message = f"{order.schedule}: {name}={str(value)[:40]} " + (
                "is set by the lanes" if name in _SIZES else "is not a number"
            )
            raise StrategyError(message, rule="order.parameter", path=path)
        parameters[name] = value
    for lane in (plan.lanes[i] for i in lanes[1:]):
        if (lane.microbatches, len(lane.slices)) != (
            first_lane.microbatches,
            len(first_lane.slices),
        ):
            message = (
                f"{order.schedule}: lane {first_lane.name} has {first_lane.microbatches}"
                f" microbatches and lane {lane.name} {lane.microbatches}"
            )
            raise StrategyError(
                message,
                hint="give both lanes the same microbatches and slices",
                rule="order.microbatches",
                path=path,
            )
    if parameters.get("slices", len(first_lane.slices) or 1) != (len(first_lane.slices) or 1):
        message = (
            f"{order.schedule}: slices={parameters['slices']}, but lane {first_lane.name} has"
            f" {len(first_lane.slices) or 1}"
        )
        raise StrategyError(
            message, hint="state the slices in the lane alone", rule="order.parameter", path=path
        )
    if len(first_lane.slices) > 1:
        parameters["slices"] = len(first_lane.slices)
    try:
        return schedule_table(
            order.schedule,
            num_ranks=ranks,
            chunks_per_rank=len(first_lane.stages) // ranks,
            num_microbatches=first_lane.microbatches,
            **parameters,
        )
    except StrategyError as error:
        raise _with_path(error, path) from error


def _with_path(error: StrategyError, path: str) -> StrategyError:
    """The error of a schedule, with the path of the order that names the schedule."""
    message = error.message.removesuffix(f" [{error.rule}]")
    return StrategyError(message, hint=error.hint, rule=error.rule, path=path)
