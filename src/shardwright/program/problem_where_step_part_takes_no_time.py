"""A problem in which one part of the step takes no time, to find what the part costs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Final

from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.program.identity_cache_keys import Same, one_of_equals
from shardwright.program.training_problem import Problem

_PRICED_PARTS: Final = (
    "gemm",
    "attention",
    "element",
    "launch",
    "tp",
    "cp",
    "ep",
    "recompute",
    "sharding",
    "scales",
    "optimizer",
    "jitter",
)
"""Parts that the cost model leaves out where `Problem.free_parts` has them."""
REMOVABLE_PARTS: Final = (*_PRICED_PARTS, "host")
"""Parts of a breakdown that `with_free_part` can remove.

The others are waiting times between tasks. They follow from the schedule and the other parts, and
no single cost causes them.
"""


def with_free_part(problem: Problem, part: str) -> Problem:
    """The problem in which `part`, one of `REMOVABLE_PARTS`, takes no time.

    All other costs and all bytes stay. Kernels that take no time hide no communication. So other
    parts may grow.

    Raises:
        ValueError: the part cannot be removed.
    """
    if part not in REMOVABLE_PARTS:
        raise ValueError(f"{part!r} is none of {', '.join(REMOVABLE_PARTS)}")
    return _with_free_part(Same(problem), part)


@lru_cache(maxsize=64)
def _with_free_part(keyed_problem: Same[Problem], part: str) -> Problem:
    """The problem in which one part takes no time, one object for equal arguments."""
    problem = keyed_problem.value
    if part == "host":
        return one_of_equals(replace(problem, cluster=_with_instant_host_links(problem.cluster)))
    return one_of_equals(replace(problem, free_parts=problem.free_parts | {part}))


def _with_instant_host_links(cluster: Cluster) -> Cluster:
    """The cluster whose devices copy to and from host memory in no time."""

    def changed(kind: NodeKind) -> NodeKind:
        """Node kind with links to the host of unlimited bandwidth."""
        pcie = replace(kind.host.pcie, bandwidth=inf)
        return replace(kind, host=replace(kind.host, pcie=pcie))

    return replace(
        cluster, groups=tuple([replace(g, kind=changed(g.kind)) for g in cluster.groups])
    )
