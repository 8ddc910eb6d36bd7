"""Groups of a node's devices that links join, and a check for missing links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardwright.errors import ClusterError

MOST_NAMED: Final = 4


def connected_parts(
    num_devices: int, pairs: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Connected components of devices 0 to `num_devices` - 1 under the links, largest first.

    A device without a link is a component of its own.

    Args:
        pairs: devices that a link joins, numbered from 0.
    """
    parent = list(range(num_devices))

    def root(device: int) -> int:
        """Representative device of the component of a device (union-find with path halving)."""
        while parent[device] != device:
            parent[device] = parent[parent[device]]
            device = parent[device]
        return device

    for one, other in pairs:
        parent[root(one)] = root(other)
    members: dict[int, list[int]] = {}
    for device in range(num_devices):
        members.setdefault(root(device), []).append(device)
    return tuple(sorted(map(tuple, members.values()), key=len, reverse=True))


def device_order_remark(levels: Iterable[tuple[tuple[int, ...], ...]]) -> str:
    """Remark with the CUDA_VISIBLE_DEVICES that makes each part consecutive; empty if all are.

    Empty where all parts are side by side already.

    Args:
        levels: parts of a node, the smallest first; each level's parts lie within those of the
            next.
    """
    found = tuple(levels)
    if all(part[-1] - part[0] == len(part) - 1 for parts in found for part in parts):
        return ""
    first = [{device: part[0] for part in parts for device in part} for parts in reversed(found)]
    order = sorted(first[0], key=lambda device: (*(of[device] for of in first), device))
    said = ",".join(map(str, order))
    variables = f"CUDA_VISIBLE_DEVICES={said} (HIP_VISIBLE_DEVICES on AMD)"
    return (
        f"devices that share a path are taken to stand side by side: start ranks with {variables}"
    )


def island_sizes(num_devices: int, pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Number of devices in each connected scale-up island, the largest first."""
    return tuple(map(len, connected_parts(num_devices, pairs)))


def require_all_links(
    counts: list[int],
    names: list[str],
    *,
    where: str,
    what: str = "NVLinks",
    look: str = "nvidia-smi nvlink -s",
) -> None:
    """Raise ClusterError if some device has fewer links than another of its node: one is down."""
    most = max(counts, default=0)
    fewer = [(name, count) for name, count in zip(names, counts, strict=True) if count < most]
    if not fewer:
        return
    said = ", ".join(f"{name} has {count} of {most} {what}" for name, count in fewer[:MOST_NAMED])
    called = ", ".join(name for name, _ in fewer[:MOST_NAMED]) + (
        ", .." if len(fewer) > MOST_NAMED else ""
    )
    down = (
        f"a link of {called} is down"
        if [most - count for _, count in fewer] == [1]
        else f"links of {called} are down"
    )
    raise ClusterError(
        f"{where}: {said} to the switch: {down}",
        hint=(
            f"{look} on that node shows which; reset or drain the node, or write {most} for"
            f" {fewer[0][0]} to plan for a whole one"
        ),
    )
