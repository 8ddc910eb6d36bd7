"""Longest paths through the tasks of a step."""

from __future__ import annotations

from types import ModuleType

import numpy.typing as npt

from shardwright.arrays import IntArray
from shardwright.simulator.kernel import longest_path as kernel
from shardwright.simulator.kernel.fixed_width_kernel_arguments import check_rows, fixed32, fixed64
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.units import PICOSECONDS_PER_SECOND


def longest_path(
    work: npt.ArrayLike,
    indegree: npt.ArrayLike,
    successor_start: npt.ArrayLike,
    successor: npt.ArrayLike,
    *,
    module: ModuleType = kernel,
) -> tuple[IntArray, IntArray]:
    """That of a kernel's module, on checked arrays."""
    fixed_work, fixed_indegree = fixed64(work), fixed32(indegree)
    start, after = fixed32(successor_start), fixed32(successor)
    check_rows(start, fixed_work.size, after, fixed_work.size)
    assert fixed_indegree.size == fixed_work.size
    found: tuple[IntArray, IntArray] = module.longest_path(fixed_work, fixed_indegree, start, after)
    return found


def path_seconds_of(done: SimulatedPlan) -> float:
    """Longest path with uncontended durations (a lower bound of the step), with jitter."""
    graph = done.program.instances
    ends = longest_path(done.timeline.work, graph.indegree, graph.successor_start, graph.successor)[
        1
    ]
    return int(ends.max()) / PICOSECONDS_PER_SECOND * (done.step_time_s / done.timeline.seconds)
