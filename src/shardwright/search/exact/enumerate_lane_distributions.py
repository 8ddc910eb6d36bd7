"""Distributions of devices and microbatches to several lanes, up to symmetry.

Lanes may be exchanged, and devices of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, product
from math import comb, prod

from shardwright.errors import UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_forward_backward_orders import num_orders
from shardwright.search.exact.exact_space import (
    ExactSpace,
    assign_devices,
    device_labels,
    lane_partitions,
    stage_trees,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LaneKind:
    """Number of devices by label, and number of microbatches, of a lane."""

    devices: tuple[int, ...]
    microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneDistribution:
    """The devices and microbatches of every lane of a plan; lanes of one kind are adjacent.

    Args:
        samples: samples of a microbatch, in every lane.
        kinds: kind of each lane.
        devices: devices of each lane, by label; devices that no lane has are idle.
    """

    samples: int
    kinds: tuple[LaneKind, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def working(self) -> tuple[int, ...]:
        """Sorted numbers of the devices of all lanes."""
        return tuple(
            sorted(
                device
                for lane in self.devices
                for label_devices in lane
                for device in label_devices
            )
        )


def lane_distributions(problem: Problem, space: ExactSpace) -> Iterator[LaneDistribution]:
    """Yield every distribution of devices and microbatches to two lanes or more.

    Devices of a label go to lanes in descending order of their number in the lane, ties to the
    earlier lane.
    """
    batch, labels = problem.job.global_batch, device_labels(problem.cluster)
    sizes = tuple(len(label) for label in labels)
    device_counts = [counts for counts in product(*(range(n + 1) for n in sizes)) if sum(counts)]
    kinds = sorted(
        (
            LaneKind(devices=counts, microbatches=m)
            for counts in device_counts
            for m in space.microbatches
        ),
        reverse=True,
    )
    for lanes in range(2, min(space.lanes, sum(sizes)) + 1):
        for chosen in _kind_multisets(kinds, lanes, sizes):
            num_microbatches = sum(kind.microbatches for kind in chosen)
            if batch % num_microbatches == 0:
                devices = assign_devices(tuple(kind.devices for kind in chosen), labels)
                yield LaneDistribution(
                    samples=batch // num_microbatches, kinds=chosen, devices=devices
                )


def _kind_multisets(
    kinds: list[LaneKind], lanes: int, sizes: tuple[int, ...]
) -> Iterator[tuple[LaneKind, ...]]:
    """Yield every multiset of `lanes` lane kinds that has enough devices of each label."""
    if not lanes:
        yield ()
        return
    for place, kind in enumerate(kinds):
        remaining = tuple(n - k for n, k in zip(sizes, kind.devices, strict=True))
        if min(remaining) >= 0 and sum(remaining) >= lanes - 1:
            for others in _kind_multisets(kinds[place:], lanes - 1, remaining):
                yield kind, *others


def num_unordered_choices(
    kinds: tuple[LaneKind, ...], num_members_of: Callable[[LaneKind], int]
) -> int:
    """Number of ways to choose a member for every lane if lanes of one kind are exchangeable.

    `num_members_of` returns the number of members of a kind.
    """
    return prod(
        num_multisets(num_members_of(kind), len(list(equal_kinds)))
        for kind, equal_kinds in groupby(kinds)
    )


def num_multisets(members: int, lanes: int) -> int:
    """Number of multisets of `lanes` members out of `members`."""
    return comb(members + lanes - 1, lanes)


MOST_MEMBERS = 1_000_000
"""Largest number of plans of several lanes that the exact search accepts."""


def require_few_members(problem: Problem, space: ExactSpace, *, blocks: int) -> None:
    """Raise a UsageError if there are more than MOST_MEMBERS plans of several lanes."""
    members = num_members(problem, space, blocks=blocks)
    if members > MOST_MEMBERS:
        raise UsageError(
            f"{members:,} plans of up to {space.lanes} lanes are too many for the exact space: at"
            f" most {MOST_MEMBERS:,}",
            hint=(
                "fewer --lanes, --max-devices or layers, or a --global-batch that fewer numbers of"
                " microbatches divide"
            ),
        )


def num_members(problem: Problem, space: ExactSpace, *, blocks: int) -> int:
    """Number of plans of several lanes, including illegal plans and deadlocked orders."""
    labels = device_labels(problem.cluster)
    trees = cache(lambda devices: sum(1 for _ in stage_trees(devices, space)))

    @cache
    def members_of(kind: LaneKind) -> int:
        """Number of members of one lane of a kind."""
        devices = assign_devices((kind.devices,), labels)[0]
        total = 0
        for partition in lane_partitions(
            devices, (kind.microbatches,), blocks=blocks, max_stages=space.max_stages, idle=False
        ):
            total += prod(map(trees, partition.devices)) * num_orders(
                len(partition.ends), kind.microbatches
            )
        return total

    return sum(
        num_unordered_choices(deal.kinds, members_of) for deal in lane_distributions(problem, space)
    )
