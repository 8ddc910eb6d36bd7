"""Who takes part in what: device sets of stages, and classes of devices that take part in the same stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shardwright.arrays import IntArray, among, distinct
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split import Split, num_leaves
from shardwright.strategy.plan.stages import Placement
from shardwright.strategy.plan.tree_shape import MAX_LISTED

Place = tuple[int, int]
"""A stage as (lane of the plan, chunk)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """Devices of each stage of some lanes, and the classes of devices that take part in the same stages.

    Args:
        sets: distinct sets of devices, each sorted. set_of: which of them each stage runs on.
        classes: devices that are in the same sets, each sorted; by their lowest device. members: by set, its classes.
    """

    sets: tuple[IntArray, ...]
    set_of: Mapping[Place, int]
    classes: tuple[IntArray, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def disjoint(self) -> bool:
        """Whether no device is in two different sets."""
        return len(self.classes) == len(self.sets) and all(len(members) == 1 for members in self.members)


def participation(plan: Plan, *, lanes: Iterable[int]) -> Participation:
    """Who takes part in the stages of `lanes` (indices into the plan's lanes).

    Raises:
        StrategyError: a tree with more leaves than can be listed (rule ``plan.devices``).
    """
    sets: list[IntArray] = []
    number: dict[bytes, int] = {}
    known: dict[tuple[int, int], int] = {}
    set_of: dict[Place, int] = {}
    offsets: dict[int, IntArray] = {}
    for lane in lanes:
        for chunk, stage in enumerate(plan.lanes[lane].stages):
            trees, key = id(stage.placements), (id(stage.placements), stage.base)
            if key not in known:
                if trees not in offsets:
                    offsets[trees] = _offsets(stage.placements, path=f"lane {plan.lanes[lane].name} / stage {chunk}")
                devices = offsets[trees] + stage.base
                known[key] = number.setdefault(devices.tobytes(), len(sets))
                if known[key] == len(sets):
                    sets.append(devices)
            set_of[lane, chunk] = known[key]
    classes, members = _classes(sets)
    return Participation(sets=tuple(sets), set_of=set_of, classes=classes, members=members)


def _offsets(placements: tuple[Placement, ...], *, path: str) -> IntArray:
    """Sorted devices of a stage whose first device is 0."""
    if any(num_leaves(p.split) > MAX_LISTED for p in placements):
        raise StrategyError(f"a tree with more than {MAX_LISTED} leaves", rule="plan.devices", path=path)
    return distinct(np.concatenate([p.offset + _leaves(p.split) for p in placements] or [np.zeros(0, np.int64)]))


def _leaves(split: Split | None) -> IntArray:
    """Devices of the leaves below `split`, in tree order."""
    if split is None:
        return np.zeros(1, np.int64)
    if isinstance(split.step, int):
        return (np.arange(split.num_parts)[:, None] * split.step + _leaves(split.children[0])).reshape(-1)
    return np.concatenate([offset + _leaves(child) for offset, child in zip(split.step, split.children, strict=True)])


def _classes(sets: list[IntArray]) -> tuple[tuple[IntArray, ...], tuple[tuple[int, ...], ...]]:
    """Devices by the sets they are in: each set cuts the classes that it meets in two."""
    every = np.concatenate(sets or [np.zeros(0, np.int64)])
    if all(map(len, sets)) and int(among(every, int(every.max(initial=-1)) + 1).sum()) == len(every):
        by_device = sorted(range(len(sets)), key=lambda one: int(sets[one][0]))
        return tuple(sets[one] for one in by_device), tuple((by_device.index(one),) for one in range(len(sets)))
    devices, place = np.unique(every, return_inverse=True)
    cuts = np.split(place.reshape(-1), np.cumsum([len(one) for one in sets])[:-1]) if sets else []
    label, used = np.zeros(len(devices), np.int64), 1
    for cut in cuts:
        old, inverse = np.unique(label[cut], return_inverse=True)
        label[cut] = used + inverse.reshape(-1)
        used += len(old)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    turn = np.argsort(np.argsort(first))[inverse.reshape(-1)]
    order = np.argsort(turn, kind="stable")
    classes = np.split(devices[order], np.flatnonzero(np.diff(turn[order])) + 1) if len(devices) else []
    return tuple(classes), tuple(tuple(distinct(turn[cut]).tolist()) for cut in cuts)
