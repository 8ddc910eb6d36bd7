"""Factor on a step from stragglers and noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from shardwright.hardware.cluster_network_levels import counts_by_group
from shardwright.program.training_problem import Problem


def jitter_factor(problem: Problem, devices: int) -> float:
    """Factor >= 1 on the step from stragglers and noise: 1 + jitter x log2(nodes).

    The same in every tier of bounds.
    """
    return jitter_factor_of_nodes(problem, devices / problem.cluster.node.num_devices)


def jitter_factor_of_devices(problem: Problem, devices: Sequence[int]) -> float:
    """Factor >= 1 on the step from stragglers and noise, for devices of several kinds.

    The number of nodes is the sum over kinds of the nodes that the devices fill.
    """
    cluster = problem.cluster
    if cluster.is_uniform:
        return jitter_factor(problem, len(devices))
    counts = zip(counts_by_group(cluster, devices), cluster.groups, strict=True)
    return jitter_factor_of_nodes(
        problem, sum(count / group.kind.num_devices for count, group in counts)
    )


def jitter_factor_of_nodes(problem: Problem, nodes: float) -> float:
    """Factor >= 1 on the step from stragglers and noise, for a number of nodes.

    The number may be a fraction. 1 if jitter is free.
    """
    if "jitter" in problem.free_parts:
        return 1.0
    return 1.0 + problem.constants.jitter * log2(max(nodes, 1.0))
