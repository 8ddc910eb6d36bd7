"""The pipeline schedules of a plan as text, one line a class of devices."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import (
    row_entries,
    table_of_entries,
)
from shardwright.schedules.schedule_registry import SCHEDULES, schedule_table
from shardwright.schedules.table_text_picture import draw
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table, actions_of
from shardwright.strategy.plan.plan import Plan

MAX_ROWS = 16
MAX_ACTIONS = 512
MAX_LINE = 400

Stages = frozenset[tuple[int, int]]
"""(lane, chunk) pairs; a lane is its number in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPicture:
    """A pipeline schedule: its title and (lowest device, slots as text) of each device class.

    There are no lines where the schedule is too large to show.
    """

    title: str
    lines: tuple[tuple[int, str], ...]


def order_pictures(
    plan: Plan, *, rows: Sequence[IntArray], takes: Sequence[Stages]
) -> tuple[OrderPicture, ...]:
    """(title, action lines) of each schedule; `rows`: devices, `takes`: stages, by device class.

    Args:
        rows: device numbers of each class of devices.
        takes: the stages that each class runs.
    """
    lowest: dict[Stages, int] = {}
    for members, stages in zip(rows, takes, strict=True):
        if stages:
            lowest[stages] = min(int(members[0]), lowest.get(stages, plan.devices))
    number = {lane.name: i for i, lane in enumerate(plan.lanes)}
    result = []
    for order in plan.orders:
        lanes = [number[name] for name in order.lanes if name in number]
        classes = {
            device: stages
            for stages, device in lowest.items()
            if any(lane in lanes for lane, _ in stages)
        }
        result.append(
            OrderPicture(title=_title(order), lines=_lines(order, plan.lanes, lanes, classes))
        )
    return tuple(result)


def _title(order: NamedOrder | Table) -> str:
    """Title of a schedule: its name with lanes and parameters, or the size of an explicit table."""
    lanes = ", ".join(name if name.isprintable() else repr(name) for name in order.lanes)
    if isinstance(order, Table):
        return (
            f"an order of its own ({lanes}): {sum(len(row) for _, row in order.rows):,} entries on"
            f" {len(order.rows):,} ranks"
        )
    return " ".join(
        [f"{order.schedule}({lanes})", *(f"{key}={value}" for key, value in order.parameters)]
    )


def _lines(
    order: NamedOrder | Table,
    lanes: tuple[Lane, ...],
    numbers: list[int],
    classes: dict[int, Stages],
) -> tuple[tuple[int, str], ...]:
    """(lowest device, actions as text) of each class; empty if large, unknown or in deadlock."""
    try:
        devices_and_table = (
            _from_table(order)
            if isinstance(order, Table)
            else _from_name(order, [lanes[n] for n in numbers], numbers, classes)
        )
        if devices_and_table is None:
            return ()
        devices, table = devices_and_table
        text = draw(table, width=MAX_LINE, lanes=tuple(order.lanes))
    except StrategyError:
        return ()
    # `draw` numbers its lines; a plan's rows are called by their lowest device.
    return tuple(
        (device, line.strip().partition(" ")[2].strip())
        for device, line in zip(devices, text.splitlines(), strict=True)
    )


def _from_table(order: Table) -> tuple[list[int], ActionTable] | None:
    """(lowest device of each row, action table) of an order table; None if too large to draw."""
    count = sum(len(entries) for _, entries in order.rows)
    if not order.rows or len(order.rows) > MAX_ROWS or count > MAX_ACTIONS:
        return None
    return [device for device, _ in order.rows], table_of_entries(
        [entries for _, entries in order.rows]
    )


def _from_name(
    order: NamedOrder, lanes: list[Lane], numbers: list[int], classes: dict[int, Stages]
) -> tuple[list[int], ActionTable] | None:
    """(lowest device of each rank, actions) of a named schedule; None if too large or misfitting.

    The ranks of the schedule must run the same chunks together as the device classes do.
    """
    sizes = {(len(lane.stages), lane.microbatches, len(lane.slices)) for lane in lanes}
    if order.schedule not in SCHEDULES or len(sizes) != 1 or not 0 < len(classes) <= MAX_ROWS:
        return None
    chunks, microbatches, slices = sizes.pop()
    if (
        chunks % len(classes)
        or chunks * microbatches * max(slices, 1) * len(lanes) * 2 > MAX_ACTIONS
    ):
        return None
    parameters = {key: value for key, value in order.parameters if isinstance(value, int)}
    if slices:
        parameters["slices"] = slices
    table = schedule_table(
        order.schedule,
        num_ranks=len(classes),
        chunks_per_rank=chunks // len(classes),
        num_microbatches=microbatches,
        **parameters,
    )
    device = {stages: lowest for lowest, stages in classes.items()}
    devices: list[int] = []
    for rank in range(table.num_ranks):
        rank_stages = frozenset(
            (numbers[a.lane], a.chunk)
            for entry in row_entries(table, rank=rank)
            for a in actions_of(entry)
            if a.lane < len(numbers)
        )
        if rank_stages not in device:
            return None
        devices.append(device[rank_stages])
    return devices, table
