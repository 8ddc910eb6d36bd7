"""Rows of tables that cannot deadlock: subsequences of one order of all actions that respects every
dependency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import devices_of
from shardwright.strategy.plan.pipeline_order import Action, Table

Entry = Action | tuple[Action, Action]


def classes(lanes: Sequence[Lane]) -> dict[int, frozenset[tuple[int, int]]]:
    """Lowest device -> (lane, chunk) of every class of devices that take part in the same
    stages."""
    takes: dict[int, set[tuple[int, int]]] = {}
    for i, lane in enumerate(lanes):
        for chunk, stage in enumerate(lane.stages):
            for placement in stage.placements:
                for device in devices_of(placement.split, stage.base + placement.offset):
                    takes.setdefault(device, set()).add((i, chunk))
    found: dict[frozenset[tuple[int, int]], int] = {}
    for device in sorted(takes):
        found.setdefault(frozenset(takes[device]), device)
    return {device: members for members, device in found.items()}


def table(lanes: Sequence[Lane], order: Iterable[Entry]) -> Table:
    """Each class's part of `order`; a pair stays one where the class runs both halves."""
    members = classes(lanes)
    rows: dict[int, list[Entry]] = {device: [] for device in members}
    for entry in order:
        halves = entry if isinstance(entry, tuple) else (entry,)
        for device, chunks in members.items():
            mine = tuple(a for a in halves if (a.lane, a.chunk) in chunks)
            if len(mine) == 2:
                rows[device].append((mine[0], mine[1]))
            elif mine:
                rows[device].append(mine[0])
    return Table(
        lanes=tuple(lane.name for lane in lanes),
        rows=tuple((device, tuple(row)) for device, row in rows.items()),
    )
