"""Reduction groups of a general plan's gradient buckets, and sums that go beyond a bucket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import chain

import numpy as np

from shardwright.hardware.strided_device_list import EMPTY, DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.stages.held_parameters import HeldParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherSum:
    """Elements of one segment's layer that `members` also sum, once their bucket is reduced.

    Args:
        total: elements of all layers, in one go.
    """

    segment: int
    members: DeviceList
    elements: float
    total: int


def bucket_of(group: DeviceList, groups: Iterable[DeviceList]) -> DeviceList:
    """Smallest of the `groups` of one device that divides `group` into a mesh; else `group`.

    All groups have one device in common.
    """
    divisors = [g for g in groups if g.size < group.size and corresponding_members(group, g)]
    return min(divisors, key=lambda g: (len(g), g), default=group)


def placed_in_buckets(
    held: list[tuple[HeldParameters, ...]], *, layers: tuple[int, ...], device: int | None = None
) -> tuple[list[tuple[HeldParameters, ...]], list[FurtherSum]]:
    """Place parameters with wider reduction groups in their neighbours' buckets; list further sums.

    The bucket is that of the matrices beside them.

    Gains of norms under sequence parallelism are copied over tp. Frameworks reduce and shard them
    with all other parameters over dp, and sum them over tp once a step (Megatron-LM,
    core/distributed/finalize_model_grads.py): 24,576 elements a layer of Nemotron-4 15B on tp 2 x
    dp 1,024 take no ring of 2,048 devices of their own. Groups that no smaller group divides stay
    as they are. Frozen parameters lie in the same buckets, and are not summed.

    Args:
        device: member of every group whose further sums are listed; None = the first of its bucket.
    """
    kinds: dict[bool, set[DeviceList]] = {False: set(), True: set()}
    for h in chain.from_iterable(held):
        if not h.is_tied:
            kinds[h.klass is ParameterClass.EXPERTS].add(h.group)
    bucket = {
        (experts, group): bucket_of(group, groups)
        for experts, groups in kinds.items()
        for group in groups
    }
    sums: dict[tuple[int, DeviceList], int] = {}
    placed_parameters = []
    for number, items in enumerate(held):
        of_segment = []
        for h in items:
            bucket_group = (
                h.group if h.is_tied else bucket[h.klass is ParameterClass.EXPERTS, h.group]
            )
            of_segment.append(
                h if bucket_group is h.group else replace(h, group=bucket_group, near=bucket_group)
            )
            if bucket_group is not h.group and h.trainable:
                members = corresponding_members(h.group, bucket_group, device=device)
                sums[number, members] = sums.get((number, members), 0) + h.elements * h.layers
        placed_parameters.append(tuple(of_segment))
    totals: dict[DeviceList, int] = {}
    for (_, members), elements in sums.items():
        totals[members] = totals.get(members, 0) + elements
    return placed_parameters, [
        FurtherSum(segment=b, members=m, elements=n / layers[b], total=totals[m])
        for (b, m), n in sums.items()
    ]


@lru_cache(maxsize=4096)
def corresponding_members(
    group: DeviceList, part: DeviceList, *, device: int | None = None
) -> DeviceList:
    """Members of `group` at a place of `part` in every part; empty if no mesh.

    Empty if the parts form no mesh or some of `part` is not of the group.

    Of (0..7) and its part (1, 3, 5, 7): (0, 1), and for device 5 (4, 5). Of its part (0, 1, 4, 5):
    (0, 2).

    Args:
        device: member of `part` whose place it is; None = the first one.
    """
    if not group.has(part.array).all():
        return EMPTY
    places = np.searchsorted(group.array, part.array)
    count, first = group.size // part.size, int(places[0])
    run = int(np.argmin(np.append(places - first == np.arange(len(part)), False)))
    block = first - first % (run * count)
    members = block + first % run + run * np.arange(count)
    parts = np.sort(np.add.outer(members - first, places), axis=None)
    place = 0 if device is None else int(np.searchsorted(group.array, device)) - first
    return (
        DeviceList.of(group.array[members + place])
        if np.array_equal(parts, np.arange(len(group)))
        else EMPTY
    )
