"""Members of a searched grid space with their bounds, their front, and an even sample of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.search.grid.bounds.bound_kernel_inputs import bound_all
from shardwright.search.grid.bounds.members_with_time_and_memory import Bounded, bound_space
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid

MOST_EXPANDED: Final = 2**20
"""Most members of meshes that the search ruled out whole and that are bounded one by one."""
_SAMPLED: Final = 1024
"""About as many members are sorted to find some that rule out most others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersByBound:
    """Members of a searched space that were bounded one by one.

    Args:
        parts: sets of members.
        start: (parts + 1,) number of the first member of each set.
        seconds: (members,) lower bound of the step, also of members that do not fit.
        memory: (members,) lower bound in bytes of the fullest device.
        fits: (members,) True where neither a device nor a node must hold more than it can.
        num_whole: members of the other meshes, which have a bound in common.
        least_whole_s: the smallest bound of those meshes that have a plan that may fit; inf if
            there is none.
        num_whole_near: the members of those meshes whose bound is at most `near_s`.
    """

    parts: tuple[Bounded, ...]
    start: IntArray
    seconds: FloatArray
    memory: FloatArray
    fits: BoolArray
    num_whole: int
    least_whole_s: float
    num_whole_near: int

    def grid(self, number: int) -> Grid:
        """Grid of member number `number`, counted over all option parts."""
        part = int(np.searchsorted(self.start, number, side="right")) - 1
        return member_grid(self.parts[part].members, number - int(self.start[part]))


def members_by_bound(
    problem: Problem,
    facts: GridFacts,
    searched: Searched,
    *,
    capacity: float,
    near_s: float,
    most: int = MOST_EXPANDED,
) -> MembersByBound:
    """Bound each member that a search expanded, and `most` others in meshes bounded by `near_s`.

    The search rules out most meshes whole. Those that may have a member of at most `near_s` seconds
    are expanded here, by ascending bound, up to `most` members.

    Args:
        capacity: bytes of a device that a plan may fill.
    """
    parts = [
        (part.space.chosen, part.bounded(problem, facts, capacity=capacity))
        for part in searched.expanded
    ]
    num_whole, num_near, least_s = 0, 0, math.inf
    for meshes, bounds, space in searched.left:
        order = np.argsort(bounds, kind="stable")
        members = np.cumsum(meshes.columns["distinct"][order])
        near = int(np.searchsorted(bounds[order], near_s, side="right"))
        taken = min(near, int(np.searchsorted(members, most, side="right")))
        if taken:
            rows = meshes.take(np.sort(order[:taken]))
            part_problem = under(problem, space.chosen)
            bounded = bound_space(part_problem, space, facts, capacity=capacity, meshes=rows)
            parts.append((space.chosen, bounded))
            most -= int(members[taken - 1])
        distinct = meshes.columns["distinct"][order[taken:]]
        num_whole += int(distinct.sum())
        num_near += int(distinct[: near - taken].sum())
        least_s = min(least_s, float(bounds[order[taken:]].min(initial=math.inf)))
    unlimited = [
        bound_all(under(problem, chosen), bounded.prepared, capacity=math.inf)[0]
        for chosen, bounded in parts
    ]
    fits = np.concatenate([np.isfinite(bounded.seconds) for _, bounded in parts])
    limited = np.concatenate([bounded.seconds for _, bounded in parts])
    return MembersByBound(
        parts=tuple(bounded for _, bounded in parts),
        start=np.cumsum([0, *(len(bounded.seconds) for _, bounded in parts)]),
        seconds=np.where(fits, limited, np.concatenate(unlimited)),
        memory=np.concatenate([bounded.memory for _, bounded in parts]),
        fits=fits,
        num_whole=num_whole,
        least_whole_s=least_s,
        num_whole_near=num_near,
    )


def front_members(members: MembersByBound) -> IntArray:
    """Numbers of the fitting members on the Pareto front of time and memory bound, fastest first.

    No other member that fits has a smaller bound of one and no larger bound of the other quantity.
    Of members with equal bounds, the first is on the front.
    """
    numbers = _not_behind(members, np.flatnonzero(members.fits))
    order = _fastest_first(members, numbers)
    front: IntArray = order[_is_smallest_so_far(members.memory[order])]
    return front


def _fastest_first(members: MembersByBound, numbers: IntArray) -> IntArray:
    """Member numbers by ascending time bound, then memory bound, then number."""
    order: IntArray = numbers[
        np.lexsort((numbers, members.memory[numbers], members.seconds[numbers]))
    ]
    return order


def _is_smallest_so_far(values: FloatArray) -> BoolArray:
    """(n,) True where a value is smaller than all values before it."""
    smallest_before = np.concatenate([[np.inf], np.minimum.accumulate(values)[:-1]])
    is_smallest: BoolArray = values < smallest_before
    return is_smallest


def _not_behind(members: MembersByBound, numbers: IntArray) -> IntArray:
    """The member numbers without most of those that another of them rules out of the front.

    A member is ruled out by one with a smaller time bound and no larger memory bound. Those that
    the front of a sample rules out need not be sorted.
    """
    sample = _fastest_first(members, numbers[:: max(len(numbers) // _SAMPLED, 1)])
    for ahead in sample[_is_smallest_so_far(members.memory[sample])].tolist():
        behind = (members.seconds[numbers] > members.seconds[ahead]) & (
            members.memory[numbers] >= members.memory[ahead]
        )
        numbers = numbers[~behind]
    return numbers


def even_sample(members: MembersByBound, *, count: int, without: IntArray) -> IntArray:
    """Ascending numbers of up to `count` members, spread evenly by time bound; 3 of 4 fit memory.

    Three of four fit, where there are that many of both; the others do not.

    Args:
        without: members that are not chosen.
    """
    is_free = np.ones(len(members.seconds), dtype=np.bool_)
    is_free[without] = False
    fitting = np.flatnonzero(is_free & members.fits)
    others = np.flatnonzero(is_free & ~members.fits)
    num_others = min(len(others), max(count // 4, count - len(fitting)))
    chosen = [
        _evenly(members, fitting, min(len(fitting), count - num_others)),
        _evenly(members, others, num_others),
    ]
    sample: IntArray = np.sort(np.concatenate(chosen))
    return sample


def _evenly(members: MembersByBound, numbers: IntArray, count: int) -> IntArray:
    """`count` of the members at equal distances by rank of their time bound, with both ends.

    Members with equal bounds rank in the order of `numbers`.
    """
    if not count:
        return numbers[:0]
    places = np.arange(count) * (len(numbers) - 1) // max(count - 1, 1)
    chosen: IntArray = numbers[at_ranks(members.seconds[numbers], places)]
    return chosen


def at_ranks(values: FloatArray, ranks: IntArray) -> IntArray:
    """``np.argsort(values, kind="stable")[ranks]``, without sorting values between the ranks.

    Values are counted in up to 2^16 buckets of ascending bit patterns, and only the buckets with a
    requested rank are sorted: a tenth of the time for a million values and a thousand ranks.

    Args:
        values: (n,) numbers from 0 to inf.
    """
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    low, high = int(bits.min()), int(bits.max())
    shift = max((high - low).bit_length() - 16, 0)
    bucket = ((bits - np.uint64(low)) >> np.uint64(shift)).astype(np.uint16)
    sizes = np.bincount(bucket)
    bucket_of_rank = np.searchsorted(np.cumsum(sizes), ranks, side="right")
    is_sorted = np.zeros(len(sizes), dtype=np.bool_)
    is_sorted[bucket_of_rank] = True
    places = np.flatnonzero(is_sorted[bucket])
    places = places[np.argsort(values[places], kind="stable")]
    left_out_below = np.cumsum(np.where(is_sorted, 0, sizes))
    found: IntArray = places[ranks - left_out_below[bucket_of_rank]]
    return found


def near_members(members: MembersByBound, near_s: float) -> IntArray:
    """Numbers of the members that fit and have a time bound of at most `near_s`."""
    numbers: IntArray = np.flatnonzero(members.fits & (members.seconds <= near_s))
    return numbers


def by_memory(members: MembersByBound, numbers: IntArray) -> Iterator[int]:
    """Yield the member numbers by ascending memory bound, then time bound."""
    order = np.lexsort((numbers, members.seconds[numbers], members.memory[numbers]))
    yield from numbers[order].tolist()
