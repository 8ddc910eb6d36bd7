"""Device sets of stages, and classes of devices that run the same stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shardwright.arrays import distinct
from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList, are_disjoint, union
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.plan.operator_split_tree import Split, num_leaves
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import MAX_LISTED
from shardwright.strategy.plan.stage_splits_and_policies import Placement

Place = tuple[int, int]
"""A stage as (lane of the plan, chunk)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """Device sets of the stages of some lanes, and classes of devices that run the same stages.

    Args:
        sets: distinct sets of devices, each sorted.
        set_of: index of the set that each stage runs on.
        classes: devices that are in the same sets, each sorted; by their lowest device.
        members: by set, its classes.
    """

    sets: tuple[DeviceList, ...]
    set_of: Mapping[Place, int]
    classes: tuple[DeviceList, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def disjoint(self) -> bool:
        """True if no device is in two different sets."""
        return len(self.classes) == len(self.sets) and all(
            len(members) == 1 for members in self.members
        )


def participation(plan: Plan, *, lanes: Iterable[int]) -> Participation:
    """Device sets and device classes of the stages of `lanes` (indices into the plan's lanes).

    Raises:
        StrategyError: a tree with more leaves than can be listed (rule ``plan.devices``).
    """
    number: dict[DeviceList, int] = {}
    set_of_stage: dict[tuple[int, int], int] = {}
    set_of: dict[Place, int] = {}
    offsets: dict[int, DeviceList] = {}
    for lane in lanes:
        for chunk, stage in enumerate(plan.lanes[lane].stages):
            trees, key = id(stage.placements), (id(stage.placements), stage.base)
            if key not in set_of_stage:
                if trees not in offsets:
                    offsets[trees] = _stage_devices(
                        stage.placements, path=f"lane {plan.lanes[lane].name} / stage {chunk}"
                    )
                set_of_stage[key] = number.setdefault(
                    offsets[trees].shifted(stage.base), len(number)
                )
            set_of[lane, chunk] = set_of_stage[key]
    classes, members = _device_classes(tuple(number))
    return Participation(sets=tuple(number), set_of=set_of, classes=classes, members=members)


def _stage_devices(placements: tuple[Placement, ...], *, path: str) -> DeviceList:
    """Devices of all leaves of a stage's placements, counted from the stage's first device."""
    if any(num_leaves(p.split) > MAX_LISTED for p in placements):
        raise StrategyError(
            f"a tree with more than {MAX_LISTED} leaves", rule="plan.devices", path=path
        )
    return union(_leaf_devices(p.split).shifted(p.offset) for p in placements)


def _leaf_devices(split: Split | None) -> DeviceList:
    """Devices of the leaves below `split`, in tree order."""
    if split is None:
        return DeviceList.run(0, 1)
    if isinstance(split.step, int):
        below = _leaf_devices(split.children[0])
        if not below.offsets:
            return DeviceList.mesh(below.first, ((split.num_parts, split.step), *below.levels))
        return DeviceList.of(
            np.add.outer(np.arange(split.num_parts) * split.step, below.array).reshape(-1)
        )
    parts = [
        _leaf_devices(child).shifted(offset).array
        for offset, child in zip(split.step, split.children, strict=True)
    ]
    return DeviceList.of(np.concatenate(parts))


def _device_classes(
    sets: tuple[DeviceList, ...],
) -> tuple[tuple[DeviceList, ...], tuple[tuple[int, ...], ...]]:
    """(classes of devices that belong to the same sets, class numbers of each set).

    Each set cuts the classes that it overlaps in two.
    """
    if 0 not in [number.size for number in sets] and are_disjoint(sets):
        by_device = sorted(range(len(sets)), key=lambda number: sets[number].first)
        return tuple(sets[number] for number in by_device), tuple(
            (by_device.index(number),) for number in range(len(sets))
        )
    devices, place = np.unique(
        np.concatenate([number.array for number in sets]), return_inverse=True
    )
    cuts = (
        np.split(place.reshape(-1), np.cumsum([len(number) for number in sets])[:-1])
        if sets
        else []
    )
    label, used = np.zeros(len(devices), np.int64), 1
    for cut in cuts:
        labels_there, inverse = np.unique(label[cut], return_inverse=True)
        label[cut] = used + inverse.reshape(-1)
        used += len(labels_there)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    turn = np.argsort(np.argsort(first))[inverse.reshape(-1)]
    order = np.argsort(turn, kind="stable")
    classes = (
        np.split(devices[order], np.flatnonzero(np.diff(turn[order])) + 1) if len(devices) else []
    )
    return tuple(map(DeviceList.of, classes)), tuple(
        tuple(distinct(turn[cut]).tolist()) for cut in cuts
    )
