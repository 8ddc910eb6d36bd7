"""Memory of this machine that a simulation may use, checked before anything is built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from shardwright.errors import ResourceError
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.units import GIB, format_bytes

MOST_BYTES: Final = int(3.5 * GIB)
"""Most bytes of a simulation on any machine: such a simulation runs for a minute or two, and a
larger request is hardly intended."""
ACTION_BYTES: Final = 900
"""Bytes of each action of each pipeline rank: its row, its tasks and sends, and their dependencies.
Measured on eight ranks: 830 (1F1B), 850 (interleaved), 700 (zero bubble, by shorter actions).
"""
TASK_BYTES: Final = 2400
"""Bytes of each task of a traced device: its spans and its lines of the file. Measured: 2,200."""
_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")


def require_room(count: int, *, action_bytes: int, doing: str) -> None:
    """Raise ResourceError if `count` actions exceed the free memory, at most MOST_BYTES.

    MOST_BYTES limits the free memory.
    """
    room = min(memory_left(), MOST_BYTES)
    if count * action_bytes > room:
        raise ResourceError(
            f"{doing} takes {format_bytes(count * action_bytes)} of memory, and"
            f" {format_bytes(room)} may be taken here",
            hint="fewer microbatches: a larger mbs, more dp, or a smaller --global-batch",
        )


def num_actions(plan: Plan, families: dict[tuple[int, int], int]) -> int:
    """Least number of actions to simulate: forwards and backwards by family, or listed rows.

    One forward and one backward of each microbatch and slice on each family of a stage.

    Args:
        families: number of device families that are simulated separately, by (lane, stage).
    """
    numbers = {lane.name: number for number, lane in enumerate(plan.lanes)}
    total = 0
    for order in plan.orders:
        if not isinstance(order, NamedOrder):
            total += sum(len(row) for _, row in order.rows)
            continue
        for number in (numbers[name] for name in order.lanes if name in numbers):
            lane = plan.lanes[number]
            actions_of_stage = 2 * lane.microbatches * max(len(lane.slices), 1)
            total += actions_of_stage * sum(
                families.get((number, stage), 1) for stage in range(len(lane.stages))
            )
    return total


def memory_left() -> int:
    """Bytes this process can still allocate: the less of machine and container; else MOST_BYTES.

    MOST_BYTES if neither is known.
    """
    return min(_machine_left(), _container_left())


def _machine_left() -> int:
    """Available bytes of the machine; its total memory, or MOST_BYTES, if unknown."""
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return MOST_BYTES


def _container_left() -> int:
    """Bytes left under the cgroup's memory limit, file pages as free; MOST_BYTES without one.

    File pages can be reclaimed, and do not count.
    """
    try:
        limit = int((_GROUP / "memory.max").read_text())
        usage = int((_GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return max(limit - usage + int(stat.get("file", 0)), 0)
    except (OSError, ValueError):
        return MOST_BYTES
