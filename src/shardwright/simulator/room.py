"""Whether this machine has the memory that a simulation of many actions takes: refused before
anything is built.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from shardwright.errors import ResourceError
from shardwright.strategy.plan.order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.units import GIB, format_bytes

MOST: Final = int(3.5 * GIB)
"""Bytes that a simulation may take on a machine with more: what takes longer than a minute or two
is hardly meant."""
ACTION_BYTES: Final = 900
"""Of each action of each pipeline rank: its row, its tasks and sends, and what they wait for.
Measured on eight ranks: 830 (1F1B), 850 (interleaved), 700 (zero bubble, by shorter actions).
"""
TASK_BYTES: Final = 2400
"""Of each task of a traced device, its spans and its lines of the file. Measured: 2,200."""
_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")


def require_room(count: int, *, each: int, doing: str) -> None:
    """Raise if `count` actions of `each` bytes are more than this machine has left, or MOST.

    Raises:
        ResourceError: says how much it would take.
    """
    room = min(memory_left(), MOST)
    if count * each > room:
        raise ResourceError(
            f"{doing} takes {format_bytes(count * each)} of memory, and {format_bytes(room)} may be"
            " taken here",
            hint="fewer microbatches: a larger mbs, more dp, or a smaller --global-batch",
        )


def num_actions(plan: Plan, families: dict[tuple[int, int], int]) -> int:
    """Actions that a simulation of `plan` has, at least: a forward and a backward of each
    microbatch and slice on each family of a stage.

    Args:
        families: of devices that are simulated apart, by lane and stage.
    """
    numbers = {lane.name: number for number, lane in enumerate(plan.lanes)}
    total = 0
    for order in plan.orders:
        if not isinstance(order, NamedOrder):
            total += sum(len(row) for _, row in order.rows)
            continue
        for number in (numbers[name] for name in order.lanes if name in numbers):
            lane = plan.lanes[number]
            each = 2 * lane.microbatches * max(len(lane.slices), 1)
            total += each * sum(
                families.get((number, stage), 1) for stage in range(len(lane.stages))
            )
    return total


def memory_left() -> int:
    """Bytes of memory that this process can still take: of the machine, or of the container that it
    runs in; MOST where nobody says.
    """
    return min(_machine_left(), _group_left())


def _machine_left() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return MOST


def _group_left() -> int:
    """What a container's limit leaves; MOST without one. Its pages of files can be given back, and
    do not count.
    """
    try:
        most = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return max(most - used + int(stat.get("file", 0)), 0)
    except (OSError, ValueError):
        return MOST
