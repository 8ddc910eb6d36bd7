"""Who acts when: the orders of a general plan as one row of actions for each class of devices that
take part in the same stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shardwright.arrays import Int8Array, Int32Array, IntArray
from shardwright.errors import StrategyError
from shardwright.hardware.device_list import DeviceList
from shardwright.lazy_dataclass import dataclass
from shardwright.program.orders.participation import Participation, participation
from shardwright.schedules.placement import Placement, chunk_ranks
from shardwright.schedules.registry import schedule, schedule_table
from shardwright.schedules.table import KINDS, ActionTable
from shardwright.strategy.plan.order import Kind, NamedOrder, Table, actions_of
from shardwright.strategy.plan.plan import Plan

TABLE_SEARCH: Final = "table-search"
"""Name of an order that stands for a table yet to be found."""

_SIZES: Final = frozenset({"name", "num_ranks", "chunks_per_rank", "num_microbatches"})
_CODES: Final = {Kind(letter): code for code, letter in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionRows:
    """The total order of every device's actions, one row a class of devices that take part in the
    same stages (read-only arrays, CSR form).

    Rows stand order by order, inside an order by their lowest device. A stage whose devices are in
    several classes has each of its actions in each of their rows: its devices meet there.

    Args:
        devices: of each row, sorted.
        row_start: (rows + 1,) row r's actions are [row_start[r], row_start[r + 1]).
        kind: index into `schedules.table.KINDS`.
        lane: index into the plan's lanes.
        chunk: stage of the lane.
        microbatch, slice: counted
        inside the lane.
        overlapped: 1 where an action runs overlapped with the next one of its row; None where none
            does.
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
        """Classes of devices."""
        return len(self.devices)

    @property
    def row(self) -> IntArray:
        """(actions,) row of each action."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.row_start))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows of one order: (6, actions) kind, lane, chunk, microbatch, slice, overlapped; and their
    sizes.
    """

    devices: tuple[DeviceList, ...]
    columns: IntArray
    sizes: Sequence[int]


def action_rows(plan: Plan) -> ActionRows:
    """The actions of every class of devices of `plan`, in the order in which each runs them.

    A named order is its schedule's table on the plan's stages: pipeline ranks are the distinct sets
    of devices, in the order in which the first lane meets them, and each stage must be where the
    schedule's placement has it. Slices of a lane are the schedule's ``slices``.

    Left out: a chunk without trainable operators keeps the backwards that its schedule gives it; a
    stage that runs once for several microbatches is only said by tables.

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
            parts.append(_written(plan, order, lanes=lanes, take=take, path=f"order {i}"))
        else:
            parts.append(_named(plan, order, lanes=lanes, take=take, path=f"order {i}"))
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


def _written(
    plan: Plan, order: Table, *, lanes: tuple[int, ...], take: Participation, path: str
) -> _Part:
    """Rows of a table, by their lowest device."""
    rows = dict(order.rows)
    keys = [devices[0] for devices in take.classes]
    if sorted(rows) != keys or len(rows) != len(order.rows):
        raise StrategyError(
            f"rows for devices {_some(sorted(rows))}, but the classes begin at {_some(keys)}",
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
    return _Part(devices=take.classes, columns=columns, sizes=[len(row) for row in entries])


def _check_actions(plan: Plan, columns: IntArray, *, lanes: tuple[int, ...], path: str) -> None:
    """Every action names a stage, a microbatch and a slice that exist."""
    mine = [plan.lanes[lane] for lane in lanes]
    _, lane, chunk, microbatch, part, _ = columns
    stages, microbatches, parts = np.array(
        [(len(one.stages), one.microbatches, max(1, len(one.slices))) for one in mine]
    ).T
    here = np.minimum(lane, len(mine) - 1)
    wrong = (
        (lane != here)
        | (chunk >= stages[here])
        | (microbatch >= microbatches[here])
        | (part >= parts[here])
    )
    wrong |= columns.min(axis=0) < 0
    if wrong.any():
        _, lane, chunk, microbatch, part, _ = columns[:, int(np.argmax(wrong))]
        message = f"there is no chunk {chunk} microbatch {microbatch} slice {part} of lane {lane}"
        raise StrategyError(
            message, hint="counted from 0 in the lane", rule="order.actions", path=path
        )


def _some(numbers: list[int]) -> str:
    return " ".join(map(str, numbers[:8])) + (" .." if len(numbers) > 8 else "")


def _named(
    plan: Plan, order: NamedOrder, *, lanes: tuple[int, ...], take: Participation, path: str
) -> _Part:
    """The rows of a schedule's table, sorted by the ranks' lowest devices."""
    if order.schedule == TABLE_SEARCH:
        raise StrategyError(
            "the table of this order is not found yet",
            hint="resolve the plan first",
            rule="order.schedule",
            path=path,
        )
    try:
        placement = schedule(order.schedule).placement
    except StrategyError as error:
        raise _located(error, path) from error
    ranks = _ranks(plan, order, placement=placement, lanes=lanes, take=take, path=path)
    table = _table(plan, order, lanes=lanes, ranks=len(ranks), path=path)
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
    return _Part(devices=devices, columns=columns, sizes=sizes)


def _ranks(
    plan: Plan,
    order: NamedOrder,
    *,
    placement: Placement,
    lanes: tuple[int, ...],
    take: Participation,
    path: str,
) -> list[int]:
    """Sets of devices of the pipeline ranks, in order; an error where the stages are not laid as
    `placement` says.
    """

    def refuse(message: str, hint: str) -> StrategyError:
        return StrategyError(
            f"{order.schedule}: {message}", hint=hint, rule="order.placement", path=path
        )

    write = f"write a table, or order {TABLE_SEARCH}"
    if len(lanes) != placement.lanes:
        raise refuse(
            f"it orders {placement.lanes} lane{'s'[: placement.lanes - 1]}, not {len(lanes)}", write
        )
    if not take.disjoint:
        message = (
            "some stages share a part of their devices; a schedule knows stages on the same devices"
            " or on others"
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
            f"as many stages on each set, in each lane; or {write}",
        )
    wanted = chunk_ranks(placement, num_ranks=len(ranks), chunks_per_rank=counts[0] // len(ranks))
    for lane, (sets, places) in enumerate(zip(walks, wanted.tolist(), strict=True)):
        wrong = next(
            (
                c
                for c, (one, rank) in enumerate(zip(sets, places, strict=True))
                if one != ranks[rank]
            ),
            None,
        )
        if wrong is not None:
            here, there = (take.sets[one][0] for one in (sets[wrong], ranks[places[wrong]]))
            name = plan.lanes[lanes[lane]].name
            message = (
                f"stage {wrong} of lane {name} begins at device {here}, a {placement.value}"
                f" placement has it at device {there}"
            )
            raise refuse(message, f"move the stage, or {write}")
    late = next(
        (
            c
            for lane in lanes
            for c, stage in enumerate(plan.lanes[lane].stages)
            if stage.every != 1
        ),
        None,
    )
    if late is not None:
        raise refuse(f"stage {late} does not run once a microbatch", write)
    return ranks


def _table(
    plan: Plan, order: NamedOrder, *, lanes: tuple[int, ...], ranks: int, path: str
) -> ActionTable:
    """The schedule's table of the lanes' numbers."""
    first = plan.lanes[lanes[0]]
    parameters: dict[str, int] = {}
    for name, value in order.parameters:
        if not isinstance(value, int) or name in _SIZES:
            message = f"{order.schedule}: {name}={str(value)[:40]} " + (
                "is the lanes' matter" if name in _SIZES else "is no number"
            )
            raise StrategyError(message, rule="order.parameter", path=path)
        parameters[name] = value
    for lane in (plan.lanes[i] for i in lanes[1:]):
        if (lane.microbatches, len(lane.slices)) != (first.microbatches, len(first.slices)):
            message = (
                f"{order.schedule}: lane {first.name} has {first.microbatches} microbatches and"
                f" lane {lane.name} {lane.microbatches}"
            )
            raise StrategyError(
                message, hint="as many in both, cut alike", rule="order.microbatches", path=path
            )
    if parameters.get("slices", len(first.slices) or 1) != (len(first.slices) or 1):
        message = (
            f"{order.schedule}: slices={parameters['slices']}, but lane {first.name} has"
            f" {len(first.slices) or 1}"
        )
        raise StrategyError(
            message, hint="the lane says the slices", rule="order.parameter", path=path
        )
    if len(first.slices) > 1:
        parameters["slices"] = len(first.slices)
    try:
        return schedule_table(
            order.schedule,
            num_ranks=ranks,
            chunks_per_rank=len(first.stages) // ranks,
            num_microbatches=first.microbatches,
            **parameters,
        )
    except StrategyError as error:
        raise _located(error, path) from error


def _located(error: StrategyError, path: str) -> StrategyError:
    """A schedule's own refusal, with the order that asks for it."""
    said = error.message.removesuffix(f" [{error.rule}]")
    return StrategyError(said, hint=error.hint, rule=error.rule, path=path)
