"""The orders of a plan as text: one line a class of devices, where that is small enough to read."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.schedules.action_table import ActionTable
from shardwright.schedules.plan_actions import row_entries, table_of_entries
from shardwright.schedules.schedule_registry import SCHEDULES, schedule_table
from shardwright.schedules.table_picture import draw
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import NamedOrder, Table, actions_of
from shardwright.strategy.plan.plan import Plan

MAX_ROWS = 16
MAX_ACTIONS = 512
MAX_LINE = 400

Stages = frozenset[tuple[int, int]]
"""(lane, chunk) pairs, lanes counted in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPicture:
    """An order: its name, lanes and parameters, and (lowest device, slots) of each class; no lines
    where it is too large to show.
    """

    title: str
    lines: tuple[tuple[int, str], ...]


def order_pictures(
    plan: Plan, *, rows: Sequence[IntArray], takes: Sequence[Stages]
) -> tuple[OrderPicture, ...]:
    """The orders of `plan`.

    Args:
        rows: device numbers of each class of devices.
        takes: the stages that each takes part in.
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
    among = ", ".join(name if name.isprintable() else repr(name) for name in order.lanes)
    if isinstance(order, Table):
        return (
            f"an order of its own ({among}): {sum(len(row) for _, row in order.rows):,} entries on"
            f" {len(order.rows):,} ranks"
        )
    return " ".join(
        [f"{order.schedule}({among})", *(f"{key}={value}" for key, value in order.parameters)]
    )


def _lines(
    order: NamedOrder | Table,
    lanes: tuple[Lane, ...],
    numbers: list[int],
    classes: dict[int, Stages],
) -> tuple[tuple[int, str], ...]:
    """One line a class; none if the order is large, unknown, or has actions that wait for ever on a
    chain of chunks.
    """
    try:
        found = (
            _from_table(order)
            if isinstance(order, Table)
            else _from_name(order, [lanes[n] for n in numbers], numbers, classes)
        )
        if found is None:
            return ()
        devices, table = found
        text = draw(table, width=MAX_LINE, lanes=tuple(order.lanes))
    except StrategyError:
        return ()
    # `draw` numbers its lines; a plan's rows are called by their lowest device.
    return tuple(
        (device, line.strip().partition(" ")[2].strip())
        for device, line in zip(devices, text.splitlines(), strict=True)
    )


def _from_table(order: Table) -> tuple[list[int], ActionTable] | None:
    count = sum(len(entries) for _, entries in order.rows)
    if not order.rows or len(order.rows) > MAX_ROWS or count > MAX_ACTIONS:
        return None
    return [device for device, _ in order.rows], table_of_entries(
        [entries for _, entries in order.rows]
    )


def _from_name(
    order: NamedOrder, lanes: list[Lane], numbers: list[int], classes: dict[int, Stages]
) -> tuple[list[int], ActionTable] | None:
    """The schedule's table if the plan puts the same chunks together as its ranks do."""
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
        run = frozenset(
            (numbers[a.lane], a.chunk)
            for entry in row_entries(table, rank=rank)
            for a in actions_of(entry)
            if a.lane < len(numbers)
        )
        if run not in device:
            return None
        devices.append(device[run])
    return devices, table
