"""Groups with one device of each of several classes, inside one island where possible.

Devices of a class are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.device_partition_by_network_level import Units

Group = tuple[int, ...]


def transversals(classes: Sequence[Group], *, island: Callable[[int], int]) -> tuple[Group, ...]:
    """Disjoint groups of one device from each class, which share an island if possible.

    All classes have one size r, so there are r groups.

    Members share an island as far as they can, else the j-th devices of the classes form a group;
    members and groups are in device order.

    Source: zoo section 4, rule 4.
    """
    if len(classes[0]) == 1:
        return (tuple(sorted([device for (device,) in classes])),)
    first_class, *other_classes = (sorted(members) for members in classes)
    groups = {device: [device] for device in first_class}
    for members in other_classes:
        by_island: dict[int, list[int]] = {}
        for device in reversed(members):
            by_island.setdefault(island(device), []).append(device)
        waiting = []
        taken: set[int] = set()
        for device in first_class:
            near = by_island.get(island(device))
            if near:
                partner = near.pop()
                taken.add(partner)
                groups[device].append(partner)
            else:
                waiting.append(device)
        for device, partner in zip(waiting, (m for m in members if m not in taken), strict=True):
            groups[device].append(partner)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values()))


def transversals_in_order(classes: IntArray, islands: Units | None) -> IntArray | None:
    """(groups, classes) transversals of many lists of classes at once; None where islands differ.

    The j-th devices of all classes form a group; None where islands pair devices otherwise.

    Args:
        classes: (lists, classes, members), members in device order.
        islands: islands of the devices; None = no islands.

    Returns:
        (groups, classes) members of each group, sorted.
    """
    count, _, members = classes.shape
    if members > 1 and islands is not None:
        place = islands.of(classes)
        first_place = place[np.arange(count), classes[:, :, 0].argmin(axis=1), None]
        shares_island = (place[..., :, None] == first_place[..., None, :]).any(axis=(2, 3))
        if (shares_island & (place != first_place).any(axis=2)).any():
            return None
    return np.sort(classes.transpose(0, 2, 1).reshape(count * members, -1), axis=1)


def representatives(classes: Sequence[Group], *, island: Callable[[int], int]) -> Group:
    """One device of each class, near the island that most classes reach.

    In class order; among equally near devices the lowest.

    Source: zoo section 4, rule 4 (the nearest representatives).
    """
    reached = Counter(
        place for members in classes for place in {island(device) for device in members}
    )
    best = max(reached.values())
    home = min(place for place, classes_there in reached.items() if classes_there == best)
    return tuple(
        min(members, key=lambda device: (abs(island(device) - home), device)) for members in classes
    )
