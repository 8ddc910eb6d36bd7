"""Distributions of devices and microbatches to several lanes: all of them, up to the exchange of
lanes and of devices of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, product
from math import comb, prod

from shardwright.errors import UsageError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.exact.exact_space import (
    ExactSpace,
    dealt,
    device_labels,
    lane_partitions,
    stage_trees,
)
from shardwright.search.exact.static_orders import num_orders


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LaneKind:
    """The devices and microbatches of a lane.

    Args:
        devices: of each label.
        microbatches: that it takes.
    """

    devices: tuple[int, ...]
    microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The devices and microbatches of every lane of a plan; lanes of one kind are adjacent.

    Args:
        samples: of a microbatch, of every lane.
        devices: of each lane, by label; devices that no lane has are idle.
    """

    samples: int
    kinds: tuple[LaneKind, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def working(self) -> tuple[int, ...]:
        """Numbers of the devices of all lanes."""
        return tuple(sorted(device for lane in self.devices for some in lane for device in some))


def deals(problem: Problem, space: ExactSpace) -> Iterator[Deal]:
    """Every distribution to two lanes or more.

    Devices of a label are dealt by falling number of them in a lane, ties to the earlier lane.
    """
    batch, labels = problem.job.global_batch, device_labels(problem.cluster)
    sizes = tuple(len(label) for label in labels)
    some = [counts for counts in product(*(range(n + 1) for n in sizes)) if sum(counts)]
    kinds = sorted(
        (LaneKind(devices=counts, microbatches=m) for counts in some for m in space.microbatches),
        reverse=True,
    )
    for lanes in range(2, min(space.lanes, sum(sizes)) + 1):
        for chosen in _chosen(kinds, lanes, sizes):
            total = sum(kind.microbatches for kind in chosen)
            if batch % total == 0:
                devices = dealt(tuple(kind.devices for kind in chosen), labels)
                yield Deal(samples=batch // total, kinds=chosen, devices=devices)


def _chosen(
    kinds: list[LaneKind], lanes: int, sizes: tuple[int, ...]
) -> Iterator[tuple[LaneKind, ...]]:
    """Every multiset of `lanes` kinds, in the order of `kinds`, with no more devices of a label
    than there are.
    """
    if not lanes:
        yield ()
        return
    for place, kind in enumerate(kinds):
        left = tuple(n - k for n, k in zip(sizes, kind.devices, strict=True))
        if min(left) >= 0 and sum(left) >= lanes - 1:
            for others in _chosen(kinds[place:], lanes - 1, left):
                yield kind, *others


def unordered(kinds: tuple[LaneKind, ...], each: Callable[[LaneKind], int]) -> int:
    """Number of ways to choose one of `each` for every lane, where lanes of one kind may be
    exchanged.
    """
    return prod(choices(each(kind), len(list(alike))) for kind, alike in groupby(kinds))


def choices(members: int, lanes: int) -> int:
    """Number of ways to choose a member for each of a few lanes that may be exchanged."""
    return comb(members + lanes - 1, lanes)


MOST_MEMBERS = 1_000_000
"""Plans of several lanes up to which they are searched."""


def require_few(problem: Problem, space: ExactSpace, *, blocks: int) -> None:
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
    """Number of plans of several lanes, including illegal ones and deadlocked orders."""
    labels = device_labels(problem.cluster)
    trees = cache(lambda devices: sum(1 for _ in stage_trees(devices, space)))

    @cache
    def members_of(kind: LaneKind) -> int:
        own = dealt((kind.devices,), labels)[0]
        found = 0
        for partition in lane_partitions(
            own, (kind.microbatches,), blocks=blocks, max_stages=space.max_stages, idle=False
        ):
            found += prod(map(trees, partition.devices)) * num_orders(
                len(partition.ends), kind.microbatches
            )
        return found

    return sum(unordered(deal.kinds, members_of) for deal in deals(problem, space))
