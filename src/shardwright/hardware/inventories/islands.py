"""Scale-up islands of a node: devices that links join, directly or through each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def island_sizes(num_devices: int, pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Devices of each island, the largest first; a device that no link leaves is one alone.

    Args:
        pairs: devices that a link joins, numbered from 0.
    """
    parent = list(range(num_devices))

    def root(device: int) -> int:
        while parent[device] != device:
            parent[device] = parent[parent[device]]
            device = parent[device]
        return device

    for one, other in pairs:
        parent[root(one)] = root(other)
    return tuple(sorted(Counter(map(root, range(num_devices))).values(), reverse=True))
