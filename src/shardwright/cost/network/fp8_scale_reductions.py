"""Seconds of the all-reduces of delayed scaling (largest magnitudes of quantised operands).

The magnitudes of a chunk's operands are reduced after each of its passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, least_seconds
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ScaleGroup, Scaling

MAGNITUDES: Final = 1024
"""Bytes of one reduction: 4 for each of three operands of four products a layer, over a rank's
layers; latency governs up to a megabyte."""


def scale_seconds(
    problem: Problem, spans: Callable[[ScaleGroup], tuple[Span, ...]], network: Network
) -> FloatArray:
    """(n,) seconds by which delayed scaling's reduction lengthens each pass of a chunk.

    One scale a tensor, from history. (1,) zeros where nothing is reduced.

        t = all_reduce(1 KiB) + wait x log2(members)

    The group is the runtime's (`ScaleGroup`): the tensor- and context-parallel members of a stage,
    or all of its devices. Nothing runs beside the reduction: the stream that computes waits for it,
    and so for the last member. wait: `Constants.collective_wait_s`.

    Args:
        spans: how the (n,) groups of a device lie, or all ways in which they may. Under any other
            scaling nothing is reduced, nor is at 16 bits.

    Leaves out: launches of the concatenation and the update beside it, and the reductions of passes
    that are run again.

    Source: Transformer Engine, transformer_engine/pytorch/fp8.py: ``reduce_and_update_fp8_tensors``
    at the exit of the outermost ``fp8_autocast``, which Megatron-Core opens around the layers of a
    chunk, and once in that region's backward.
    """
    group = problem.runtime.scales_reduced
    if (
        group is ScaleGroup.NONE
        or problem.job.compute.bits != 8
        or problem.runtime.scaling is not Scaling.DELAYED
        or "scales" in problem.free_parts
    ):
        return np.zeros(1)
    spans_of_group = spans(group)
    size = spans_of_group[0].size
    spent = least_seconds(
        Collective.ALL_REDUCE,
        volume=np.full(len(size), float(MAGNITUDES)),
        spans=spans_of_group,
        network=network,
    )
    wait = problem.constants.collective_wait_s * np.log2(size)
    return np.asarray(np.where(size > 1, spent + wait, 0.0), dtype=np.float64)
